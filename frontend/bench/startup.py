"""`paged-serve bench startup`: times of starting and stopping a server, and its memory."""

import json
from statistics import median
from typing import Any

import click

from ..config.grouped_command import GroupedCommand
from ..config.options import config_options, resolve
from .load.load_options import count_option, json_option


@click.command("startup", cls=GroupedCommand)
@count_option("--num-starts", 5, "Measured starts; every second one is ended by SIGKILL.", group="Runs")
@json_option
@config_options
def command(**flags: Any) -> None:
    """Start `serve` with these options repeatedly; print the times of a start and the memory of each process.

    The first start may read files from disk; it has its own column and is not counted. Memory is read after a few
    requests, when the server is idle; PSS counts 1/n of each page that n processes share.
    """
    from .report.report import write_json
    from .server_start import StartResult, measure_help_ms, measure_start

    config = resolve(flags).config
    count = flags["num_starts"]
    first = measure_start(config, kill=False)
    starts = [measure_start(config, kill=index % 2 == 1) for index in range(count)]
    result = StartResult.of(first, starts, [measure_help_ms() for _ in range(count)])
    click.echo(_table(result))
    asked = {"num_starts": count, "serve": json.loads(config.for_print())}
    write_json(flags["json_file"], "startup", asked, result)


def _table(result: Any) -> str:
    from .report.tables import number, table

    def rows(head: str, measured: dict[str, list[float]], first: dict[str, float]) -> list[list[str]]:
        found = [[head, "median", "min", "max", "first"]]
        for name, values in measured.items():
            figures = (median(values), min(values), max(values), first.get(name))
            found.append([name, *map(number, figures)])
        return found

    times = table(rows("ms", result.times_ms, result.first_times_ms))
    memory = table(rows("MB", result.memory_mb, result.first_memory_mb))
    return f"{times}\n\n{memory}"
