"""`paged-serve bench throughput`: runs a load through LLM as fast as possible."""

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from ..config.grouped_command import GroupedCommand, GroupedOption
from ..config.options import config_options
from .load.load_options import LOAD_NAMES, count_option, json_option, load_options, make_load, plain

if TYPE_CHECKING:
    from .offline import BatchRun


@click.command("throughput", cls=GroupedCommand)
@load_options
@count_option("--num-iters", 1, "Measured loads; each has different prompts.", group="Runs")
@count_option("--num-iters-warmup", 0, "Warm-up loads, not measured.", group="Runs", least=0)
@click.option(
    "--temperature",
    cls=GroupedOption,
    group="Load",
    type=click.FloatRange(0),
    default=0.0,
    metavar="T",
    help="Sampling temperature; 0 is greedy.  [0]",
)
@json_option
@config_options
def command(**flags: Any) -> None:
    """Run all requests of a seeded load through MODEL at once, without HTTP; print requests and tokens per second.

    Iteration i uses --seed + i, so that no iteration finds its prompts in the prefix cache.
    """
    from .offline import engine_config, run_batch, start_llm
    from .report.report import write_json

    with start_llm(flags) as llm:
        seed = llm.config.model.seed
        for index in range(flags["num_iters_warmup"]):
            run_batch(llm, make_load(flags, -1 - seed - index, llm.limits.vocab_size), flags["temperature"])
        runs = []
        for index in range(flags["num_iters"]):
            load = make_load(flags, seed + index, llm.limits.vocab_size)
            runs.append(run_batch(llm, load, flags["temperature"]))
        config = {**plain(flags, *LOAD_NAMES, "temperature", "num_iters", "num_iters_warmup"), **engine_config(llm)}
    click.echo(_table(runs))
    medians = {name.replace(" ", "_"): median(values) for name, values in _measured(runs).items()}
    write_json(flags["json_file"], "throughput", config, {"median": medians, "runs": runs})


def _measured(runs: Sequence["BatchRun"]) -> dict[str, list[float]]:
    """The values of each measure, one per run."""
    return {
        "seconds": [run.elapsed_s for run in runs],
        "requests per second": [run.num_requests / run.elapsed_s for run in runs],
        "prompt tokens per second": [run.prompt_tokens / run.elapsed_s for run in runs],
        "output tokens per second": [run.output_tokens / run.elapsed_s for run in runs],
        "total tokens per second": [(run.prompt_tokens + run.output_tokens) / run.elapsed_s for run in runs],
    }


def _table(runs: Sequence["BatchRun"]) -> str:
    from .report.tables import number, table

    first = runs[0]
    title = f"{first.num_requests:,} requests, {first.prompt_tokens:,} prompt and {first.output_tokens:,} output tokens"
    notes = [title] if len(runs) == 1 else [f"{len(runs)} loads; first load: {title}"]
    if cached := sum(run.cached_tokens for run in runs):
        notes.append(f"{cached:,} of the prompt tokens came from the prefix cache")
    if len(runs) == 1:
        rows = [[name, number(values[0])] for name, values in _measured(runs).items()]
    else:
        rows = [["", "median", "min", "max"]]
        for name, values in _measured(runs).items():
            rows.append([name, *map(number, (median(values), min(values), max(values)))])
    return "\n".join([*notes, "", table(rows)])
