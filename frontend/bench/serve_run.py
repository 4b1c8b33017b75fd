"""Runs `paged-serve bench serve`: one load per rate, then tables, plot and JSON."""

import asyncio
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec
import uvloop

from paged_serve.protocol.errors import EngineDead

from ..cli.http_client import HttpClient
from ..open_files import raise_open_files_limit
from ..progress_bar import LoadingBar
from .load.load import LoadRequest, arrival_times, as_text
from .load.load_options import LOAD_NAMES, make_load, plain
from .load.open_loop import LoadGenerator, Server
from .load.timeline import Timeline
from .report.load_result import LoadResult
from .report.load_tables import load_table, rate_text, sweep_table
from .report.plot import sweep_plot
from .report.report import write_file, write_json

ARRIVAL_NAMES = ("arrivals", "burst_size", "max_concurrency", "num_warmups")
SERVER_NAMES = ("url", "api", "prompts", "stream", "ignore_eos", "temperature", "timeout")


def run(flags: dict[str, Any]) -> None:
    """Raises PagedServeError if there is no server or no request was answered."""
    server = _server(flags)
    raise_open_files_limit()
    rates: list[float] = flags["request_rate"]
    results = []
    for index, rate in enumerate(rates):
        click.echo(_title(server, flags, rate), err=True)
        timelines, client_share = _one_load(server, flags, rate, flags["seed"] + index)
        results.append(LoadResult.of(timelines, flags["objectives"]))
        if len(rates) == 1:
            click.echo(load_table(results[0], flags["objectives"], flags["max_concurrency"]))
        click.echo(f"this client used {client_share:.1%} of a core", err=True)
    _report(server, flags, rates, results)
    if not any(result.num_answered for result in results):
        raise EngineDead("no request was answered")


def _server(flags: dict[str, Any]) -> Server:
    url = flags["url"].rstrip("/").removesuffix("/v1")
    return Server(
        url,
        flags["model"] or HttpClient(url, flags["api_key"]).models()[0],
        flags["api_key"],
        flags["stream"],
        flags["ignore_eos"],
        flags["temperature"],
        flags["timeout"],
    )


def _title(server: Server, flags: dict[str, Any], rate: float) -> str:
    how = "all at once" if math.isinf(rate) else f"{rate_text(rate)} per second, {flags['arrivals']}"
    bound = f", at most {flags['max_concurrency']} at once" if flags["max_concurrency"] else ""
    return f"{server.model} at {server.url}: {flags['num_prompts']} requests, {how}{bound}"


def _one_load(server: Server, flags: dict[str, Any], rate: float, seed: int) -> tuple[list[Timeline], float]:
    """The timelines, and the share of a core that this process used meanwhile."""
    requests = _for_route(make_load(flags, seed, flags["vocab_size"]), flags)
    times = arrival_times(len(requests), rate, flags["arrivals"], seed, flags["burst_size"])
    bar = _Bar(len(requests))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if count := flags["num_warmups"]:
            extra = _for_route(make_load({**flags, "num_prompts": count}, -1 - seed, flags["vocab_size"]), flags)
            runner.run(LoadGenerator(server, flags["max_concurrency"]).run(extra, [0.0] * len(extra)))
        generator = LoadGenerator(server, flags["max_concurrency"], bar.one_more)
        began, busy_s = time.perf_counter(), time.process_time()
        timelines = runner.run(generator.run(requests, times))
        share = (time.process_time() - busy_s) / (time.perf_counter() - began)
    bar.clear()
    return timelines, share


def _for_route(requests: list[LoadRequest], flags: dict[str, Any]) -> list[LoadRequest]:
    """The requests in the form that the route accepts."""
    if flags["dataset"] and flags["api"] == "completions":
        return requests
    if flags["prompts"] == "text" or flags["api"] == "chat":
        requests = [r if _is_chat(r) else as_text(r) for r in requests]
    if flags["api"] == "chat":
        return [
            r if _is_chat(r) else LoadRequest([{"role": "user", "content": r.prompt}], r.max_tokens) for r in requests
        ]
    return requests


def _is_chat(request: LoadRequest) -> bool:
    return isinstance(request.prompt, list) and isinstance(request.prompt[0], dict)


def _report(server: Server, flags: dict[str, Any], rates: Sequence[float], results: Sequence[LoadResult]) -> None:
    if len(rates) > 1:
        click.echo(sweep_table(rates, results))
        for rate, result in zip(rates, results, strict=True):
            for kind, count in result.errors.items():
                click.echo(f"FAILED at {rate_text(rate)}: {count}, {kind}: {result.error_details[kind]}")
    if flags["plot_file"]:
        write_file(flags["plot_file"], sweep_plot(rates, results).encode())
    config = {"model": server.model, **plain(flags, *SERVER_NAMES, *LOAD_NAMES, *ARRIVAL_NAMES, "seed", "objectives")}
    runs = [
        {"request_rate": rate_text(rate), **result.per_second_figures(), **msgspec.to_builtins(result)}
        for rate, result in zip(rates, results, strict=True)
    ]
    write_json(flags["json_file"], "serve", config, runs)


class _Bar:
    """Progress bar of answered requests; shown only on a terminal."""

    def __init__(self, total: int):
        self._bar = LoadingBar() if sys.stderr.isatty() else None
        self._total, self._done = total, 0

    def one_more(self, timeline: Timeline) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar(f"{self._done}/{self._total} requests", self._done, self._total)

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()
