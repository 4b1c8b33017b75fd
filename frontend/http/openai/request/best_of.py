"""Checks best_of, the number of sequences from which the choices of a completion are taken."""

from paged_serve.protocol.errors import InvalidRequest

from .schemas import CompletionRequest


def check_best_of(body: CompletionRequest) -> None:
    """Raises InvalidRequest."""
    n, best_of = body.n or 1, body.best_of
    if best_of is None:
        return
    if best_of < n:
        raise InvalidRequest(f"best_of is {best_of} and n is {n}; best_of must be at least n", "best_of")
    if best_of > n and body.stream:
        raise InvalidRequest(
            f"best_of is {best_of} and n is {n}: which outputs are the best is known at the end, so they cannot be "
            "streamed; leave out stream or best_of",
            "best_of",
        )
    if best_of > n and body.use_beam_search:
        raise InvalidRequest("use_beam_search is true; its width is n, so leave out best_of", "best_of")
