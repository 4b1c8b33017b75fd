"""`paged-serve bench latency`: the time of one batch, over repeated runs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..config.grouped_command import GroupedCommand
from ..config.options import config_options
from .load.load import random_load
from .load.load_options import count_option, json_option, lengths_option, plain

if TYPE_CHECKING:
    from .offline import BatchRun


@click.command("latency", cls=GroupedCommand)
@count_option("--batch-size", 8, "Requests per batch.")
@lengths_option("--input-len", "32", "Prompt tokens, fixed or drawn from a range.")
@lengths_option("--output-len", "128", "Output tokens, fixed or drawn from a range.")
@count_option("--num-iters", 10, "Measured batches; each has different prompts.", group="Runs")
@count_option("--num-iters-warmup", 2, "Warm-up batches, not measured.", group="Runs", least=0)
@json_option
@config_options
def command(**flags: Any) -> None:
    """Run batches of random prompts through MODEL, one after another; print the times per batch and per token."""
    from .offline import engine_config, run_batch, start_llm
    from .report.report import write_json

    runs = []
    with start_llm(flags) as llm:
        for index in range(-flags["num_iters_warmup"], flags["num_iters"]):
            load = random_load(
                flags["batch_size"],
                flags["input_len"],
                flags["output_len"],
                seed=llm.config.model.seed + index,
                vocab_size=llm.limits.vocab_size,
            )
            run = run_batch(llm, load, temperature=0.0)
            if index >= 0:
                runs.append(run)
        names = ("batch_size", "input_len", "output_len", "num_iters", "num_iters_warmup")
        config = {**plain(flags, *names), **engine_config(llm)}
    click.echo(_table(runs, flags))
    write_json(flags["json_file"], "latency", config, runs)


def _table(runs: Sequence["BatchRun"], flags: dict[str, Any]) -> str:
    from .report.tables import Spread, number, spread_rows, table

    def ms(values: Sequence[float]) -> Spread | None:
        return Spread.of([1000 * value for value in values])

    steps = flags["output_len"].high - 1  # of the longest output, after its first token
    spreads = {
        "batch": ms([run.elapsed_s for run in runs]),
        "all first tokens": ms([run.first_token_s for run in runs]),
        "time per later token": ms([run.decode_s / steps for run in runs]) if steps else None,
    }
    title = f"{flags['batch_size']} requests of {flags['input_len']} + {flags['output_len']} tokens, {len(runs)} runs"
    tokens = sum(run.output_tokens for run in runs) / sum(run.elapsed_s for run in runs)
    return "\n\n".join([title, table(spread_rows("ms", spreads)), f"{number(tokens)} output tokens per second"])
