"""`paged-serve bench serve`: sends a load to a running server, paged-serve or another."""

from collections.abc import Callable
from typing import Any

import click

from ..config.grouped_command import GroupedCommand, GroupedOption
from .load.load import SMALLEST_VOCABULARY
from .load.load_options import WRITABLE, count_option, json_option, load_options, parsed_by
from .load.timeline import parse_objectives


def _option(group: str, *flags: str, **attributes: Any) -> Callable[..., Any]:
    return click.option(*flags, cls=GroupedOption, group=group, **attributes)


def parse_rates(text: str) -> list[float]:
    """Requests per second: one or more numbers, or inf, separated by commas. Raises ValueError."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(rate > 0 for rate in rates):  # false for nan too
        raise ValueError(f"{text!r} must be numbers above 0, or inf, separated by commas")
    return rates


_SERVER_OPTIONS = (
    _option(
        "Server",
        "--url",
        "--base-url",
        "url",
        metavar="URL",
        default="http://127.0.0.1:8000",
        help="Base URL, with or without /v1, or unix:/path.  [http://127.0.0.1:8000]",
    ),
    _option("Server", "--model", metavar="NAME", help="Default: the first model in the server's /v1/models."),
    _option(
        "Server",
        "--api-key",
        envvar="OPENAI_API_KEY",
        metavar="KEY",
        default="",
        help="API key; preferably set as OPENAI_API_KEY in the environment.",
    ),
    _option(
        "Server",
        "--api",
        type=click.Choice(["completions", "chat"]),
        default="completions",
        help="The route; chat implies text prompts.  [completions]",
    ),
    _option(
        "Server",
        "--prompts",
        type=click.Choice(["tokens", "text"]),
        default="tokens",
        help="The form of random prompts; a text has one word per token.  [tokens]",
    ),
    count_option("--vocab-size", SMALLEST_VOCABULARY, "Random token ids are below N.", group="Server"),
    _option(
        "Server",
        "--stream/--no-stream",
        default=True,
        help="Stream answers; otherwise only end-to-end times are measured.  [--stream]",
    ),
    _option("Server", "--ignore-eos/--no-ignore-eos", default=True, help="Request full outputs.  [--ignore-eos]"),
    _option(
        "Server",
        "--temperature",
        type=click.FloatRange(0),
        default=0.0,
        metavar="T",
        help="Sampling temperature; 0 is greedy.  [0]",
    ),
    _option(
        "Server",
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        metavar="SECONDS",
        help="Seconds after which an answer counts as failed.  [600]",
    ),
)


def _server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in reversed(_SERVER_OPTIONS):
        function = decorate(function)
    return function


def _arrival_options(function: Callable[..., Any]) -> Callable[..., Any]:
    rate_help = "Requests per second; several rates make a sweep; inf: all at once.  [inf]"
    for decorate in reversed(
        (
            _option(
                "Arrivals",
                "--request-rate",
                callback=parsed_by(parse_rates),
                default="inf",
                metavar="R[,R…]",
                help=rate_help,
            ),
            _option(
                "Arrivals",
                "--arrivals",
                type=click.Choice(["poisson", "fixed", "burst"]),
                default="poisson",
                help="Independent, at equal intervals, or --burst-size at once.  [poisson]",
            ),
            count_option("--burst-size", 8, "Requests per burst.", group="Arrivals"),
            count_option("--max-concurrency", 0, "Most requests in flight; 0: no limit.", group="Arrivals", least=0),
            count_option("--num-warmups", 0, "Warm-up requests, not measured.", group="Arrivals", least=0),
        )
    ):
        function = decorate(function)
    return function


@click.command("serve", cls=GroupedCommand)
@_server_options
@load_options
@_option("Load", "--seed", type=int, default=0, metavar="N", help="Seed of lengths, tokens and arrivals.  [0]")
@_arrival_options
@_option(
    "Results",
    "--goodput",
    "objectives",
    callback=parsed_by(parse_objectives),
    multiple=True,
    metavar="NAME:MS[,…]",
    help="Count answers within these limits, in ms: ttft, tpot, e2el.",
)
@_option("Results", "--plot", "plot_file", type=WRITABLE, metavar="FILE", help="Draw a sweep as SVG.")
@json_option
def command(**flags: Any) -> None:
    """Send a seeded load to an OpenAI server on a fixed schedule, and print throughput and latencies.

    Latencies count from a request's scheduled time, so they include the delays of a server or client that falls behind.
    Failures are counted by kind. With --request-rate 1,2,4,inf one load follows another, each with different prompts,
    so that none finds them in the prefix cache.
    """
    from .serve_run import run

    run(flags)
