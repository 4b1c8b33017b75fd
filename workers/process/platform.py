"""The interface of a platform plugin: its backends, its number of devices, and the memory for the KV cache on each."""

from typing import Protocol, runtime_checkable

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.plugins import PluginKind, load_plugins

from ..layers.backend import HostBackend


@runtime_checkable
class Platform(Protocol):
    """A kind of device. Its backends' `device` is torch's name of the device; sampling runs on the host."""

    def num_devices(self) -> int: ...

    def backend(self, index: int) -> HostBackend:
        """The backend of rank `index`. Makes that rank's device current."""
        ...

    def free_bytes(self, index: int) -> int:
        """Memory for the KV cache of rank `index`, in bytes; called after its weights are loaded."""
        ...


def platform_of(config: Config) -> Platform | None:
    """The configured plugin's platform; None for the CPU or CUDA. Raises ConfigError when it has too few devices."""
    name = config.model.platform
    if not name:
        return None
    platform: Platform = load_plugins(PluginKind.PLATFORM, (name,), Platform)[name]  # type: ignore[type-abstract]
    found, needed = platform.num_devices(), config.parallel.tensor_parallel_size
    if found < needed:
        raise ConfigError(
            f"tensor_parallel_size={needed} needs {needed} devices, but platform={name} has {found}; "
            f"use tensor_parallel_size={found}"
        )
    return platform
