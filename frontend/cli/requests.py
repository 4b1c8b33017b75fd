"""`paged-serve requests`: the requests that this user's servers are answering, and an end to some of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from paged_serve.protocol.errors import EngineDead, InvalidRequest

COLUMNS = ("id", "answer_id", "key", "status", "age_s", "prompt_tokens", "output_tokens")  # fields of a request


@click.command("requests")
@click.option("--abort", "ids", multiple=True, metavar="ID", help="End the request with this id; may be repeated.")
def command(ids: Sequence[str]) -> None:
    """List the requests in progress of all servers of this user on this machine, or end those named by --abort.

    An id is that of the request, as in the server's log, or that of its answer.
    """
    method, path, body = ("POST", "/abort_requests", {"request_ids": ids}) if ids else ("GET", "/v1/requests", None)
    found = [request for text in _answers(method, path, body) for request in msgspec.json.decode(text)["data"]]
    rows = [COLUMNS, *(tuple(str(request[name]) for name in COLUMNS) for request in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    ended = {request[name] for request in found for name in ("id", "answer_id")}
    if missing := [name for name in ids if name not in ended]:
        raise InvalidRequest(f"no server of this user has a request in progress with the id {', '.join(missing)}")


def _answers(method: str, path: str, body: dict[str, Any] | None) -> Iterator[bytes]:
    """The answer of each server, which collects those of its frontends."""
    from paged_serve.protocol.transport.run_dir import ADMIN_SOCKET, find_run_dirs

    from .http_client import HttpClient

    servers = find_run_dirs()
    if not servers:
        raise InvalidRequest("no server of this user is running on this machine")
    for folder in servers:
        for socket in sorted(Path(folder).glob(ADMIN_SOCKET.format("*"))):
            try:
                yield HttpClient(f"unix:{socket}").ask(method, path, body)
                break
            except EngineDead:
                continue  # this frontend is being replaced
            except InvalidRequest as refusal:  # it is loading its model, or of a version without this route
                click.echo(f"{folder}: {refusal}", err=True)
                break
