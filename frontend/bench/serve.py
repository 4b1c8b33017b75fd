"""`paged-serve bench serve`: load on a server that is already running, ours or another."""

from collections.abc import Callable
from typing import Any

import click

from ..config.options import GroupedCommand, GroupedOption
from .load.load import SMALLEST_VOCABULARY
from .load.load_options import count_option, json_option, load_options, parsed_by
from .load.timeline import parse_objectives


def _option(group: str, *flags: str, **attributes: Any) -> Callable[..., Any]:
    return click.option(*flags, cls=GroupedOption, group=group, **attributes)


def parse_rates(text: str) -> list[float]:
    """Requests a second: one or several numbers, inf among them. Raises ValueError."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [0.0]
    if not all(rate > 0 for rate in rates):  # false for nan too
        raise ValueError(f"{text!r} must be numbers above 0, or inf, with commas between them")
    return rates


def _server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    url_help = "Address, with or without /v1; also unix:/path.  [http://127.0.0.1:8000]"
    key_help = "Key to send; better set in the environment, as OPENAI_API_KEY."
    stream_help = "Whole answers instead have an end, but no first token.  [--stream]"
    for decorate in reversed(
        (
            _option(
                "Server", "--url", "--base-url", "url", metavar="URL", default="http://127.0.0.1:8000", help=url_help
            ),
            _option("Server", "--model", metavar="NAME", help="Default: the first of the server's /v1/models."),
            _option("Server", "--api-key", envvar="OPENAI_API_KEY", metavar="KEY", default="", help=key_help),
            _option(
                "Server",
                "--api",
                type=click.Choice(["completions", "chat"]),
                default="completions",
                help="Which route; chat implies texts.  [completions]",
            ),
            _option(
                "Server",
                "--prompts",
                type=click.Choice(["tokens", "text"]),
                default="tokens",
                help="What a random prompt is made of; a text has a word for each token.  [tokens]",
            ),
            count_option(
                "--vocab-size",
                SMALLEST_VOCABULARY,
                "Random token ids stay below.",
                group="Server",
            ),
            _option("Server", "--stream/--no-stream", default=True, help=stream_help),
            _option(
                "Server", "--ignore-eos/--no-ignore-eos", default=True, help="Ask for full length.  [--ignore-eos]"
            ),
            _option("Server", "--temperature", type=click.FloatRange(0), default=0.0, metavar="T", help="[0]"),
            _option(
                "Server",
                "--timeout",
                type=click.FloatRange(0, min_open=True),
                default=600.0,
                metavar="SECONDS",
                help="An answer that takes longer is a failure.  [600]",
            ),
        )
    ):
        function = decorate(function)
    return function


def _arrival_options(function: Callable[..., Any]) -> Callable[..., Any]:
    rate_help = "Requests a second; several make a sweep; inf is all at once.  [inf]"
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
                help="Independent, evenly, or --burst-size at once.  [poisson]",
            ),
            count_option("--burst-size", 8, "Requests of a burst.", group="Arrivals"),
            count_option("--max-concurrency", 0, "Most requests out at once; 0: no bound.", group="Arrivals", least=0),
            count_option("--num-warmups", 0, "Requests before, which do not count.", group="Arrivals", least=0),
        )
    ):
        function = decorate(function)
    return function


@click.command("serve", cls=GroupedCommand)
@_server_options
@load_options
@_option("Load", "--seed", type=int, default=0, metavar="N", help="Of lengths, tokens and arrivals.  [0]")
@_arrival_options
@_option(
    "Results",
    "--goodput",
    "objectives",
    callback=parsed_by(parse_objectives),
    multiple=True,
    metavar="NAME:MS[,…]",
    help="Count answers within these limits: ttft, tpot, e2el.",
)
@_option("Results", "--plot", "plot_file", type=click.Path(dir_okay=False), metavar="FILE", help="A sweep as SVG.")
@json_option
def command(**flags: Any) -> None:
    """Send a seeded load to an OpenAI server on a schedule that waits for no answer, and print what came of it.

    Latencies count from the moment a request was meant to be sent, so a server (or a client) that falls behind shows.
    Failures are counted by kind. With --request-rate 1,2,4,inf the loads follow one another, each with prompts of its
    own, so that none is served from the prefix cache of another.
    """
    from .serve_run import run

    run(flags)
