"""Chooses between our own implementation of a model and that of the transformers library."""

import difflib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig

from ..families.family import Family
from ..registry import families_with, find_family, not_supported

INSTALL = "pip install 'paged-serve[hf]'"
HEADS_OF_ENCODERS = re.compile(r"For(SequenceClassification|TokenClassification|MaskedLM)$")


def is_for_transformers(architectures: list[str], config: ModelConfig) -> bool:
    """Whether the library runs the model. Raises ConfigError if it is needed and not installed."""
    families = families_with(config.plugins)
    if config.model_impl == "native" or (config.model_impl == "auto" and find_family(architectures, families)):
        return False
    if importlib.util.find_spec("transformers") is not None:
        return True
    if config.model_impl == "transformers":
        raise ConfigError(f"--model-impl transformers: transformers is not installed; {INSTALL}")
    raise ConfigError(f"{not_supported(architectures, families)}; transformers may run it: {INSTALL}")


@contextmanager
def refusals_named(architectures: list[str], config: ModelConfig) -> Iterator[None]:
    """Adds to a ConfigError the name of the model, and the most similar architecture that is supported."""
    try:
        yield
    except ConfigError as error:
        named = ", ".join(architectures)
        nearest = _nearest(architectures, families_with(config.plugins))
        raise ConfigError(f"architecture {named} with --model-impl transformers: {error}{nearest}") from error


def _nearest(architectures: Sequence[str], families: Sequence[Family]) -> str:
    native = [name for family in families for name in family.architectures]
    if set(architectures) & set(native):
        return "; --model-impl native runs this architecture"
    models = [HEADS_OF_ENCODERS.sub("Model", given) for given in architectures]
    found = [name for given in models for name in difflib.get_close_matches(given, native, 1)]
    return f"; the nearest architecture that runs natively is {found[0]}" if found else ""
