"""Plugins that find the adapters of unknown model names."""

from collections.abc import Callable
from types import FunctionType

from paged_serve.protocol.plugins import PluginKind, load_plugins

Resolver = Callable[[str], str | None]  # a model's name -> the folder of its adapter; None: it knows no such model


def load_resolvers(plugins: tuple[str, ...]) -> tuple[Resolver, ...]:
    """The resolvers that the configuration names, in its order. Raises ConfigError for one that cannot be loaded."""
    return tuple(load_plugins(PluginKind.LORA_RESOLVER, plugins, FunctionType).values())
