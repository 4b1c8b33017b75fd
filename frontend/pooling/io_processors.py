"""IO processors: plugins that turn data of any kind into prompts for vectors, and the vectors into an answer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingTask
from paged_serve.protocol.plugins import PluginKind, load_plugins

Prompts = Sequence[str | list[int]]


class IOProcessor(Protocol):
    """Constructed with the model's name. Its methods are called in threads, for several requests at a time."""

    task: PoolingTask  # the task of all prompts

    def prompts(self, data: Any) -> Prompts:
        """Texts or lists of tokens for a request's `data`, which is decoded JSON; at least one.

        Raises ValueError for wrong data; its message goes to the client.
        """
        ...

    def output(self, data: Any, vectors: Sequence["memoryview[float]"]) -> Any:
        """The answer, as a value that JSON can represent. `vectors`: one per prompt, float32 [rows, columns]."""
        ...


def load_io_processors(plugins: tuple[str, ...], model_name: str) -> Mapping[str, IOProcessor]:
    """The IO processors that the configuration names. Raises ConfigError for one that cannot be loaded."""
    classes: dict[str, type[IOProcessor]] = load_plugins(PluginKind.IO_PROCESSOR, plugins, type)
    return {name: made(model_name) for name, made in classes.items()}  # type: ignore[call-arg]


def io_processor(loaded: Mapping[str, IOProcessor], name: str) -> IOProcessor:
    """Raises InvalidRequest for a name that is not loaded."""
    if (found := loaded.get(name)) is None:
        names = ", ".join(loaded) or "none; --plugin NAME loads one"
        raise InvalidRequest(
            f"io_processor is {name:.100}, which is not loaded; this server has: {names}", "io_processor"
        )
    return found


def prompts_of(processor: IOProcessor, data: Any) -> list[str | list[int]]:
    """Raises InvalidRequest for data that the processor refuses."""
    try:
        prompts = list(processor.prompts(data))
    except ValueError as error:
        raise InvalidRequest(f"data: {error}", "data") from error
    if not prompts:
        raise InvalidRequest("data: the IO processor returned no prompt for it", "data")
    return prompts


def output_of(processor: IOProcessor, data: Any, pooled: Sequence[Pooled]) -> msgspec.Raw:
    """The answer as JSON."""
    vectors = [memoryview(each.values).cast("f", shape=(each.rows, each.columns)) for each in pooled]
    return msgspec.Raw(msgspec.json.encode(processor.output(data, vectors)))
