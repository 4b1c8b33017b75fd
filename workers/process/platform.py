"""A platform of a plugin: what computes, how many devices it has, how much of their memory the KV cache may take."""

from typing import Protocol, runtime_checkable

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.plugins import PluginKind, load_plugins

from ..layers.backend import HostBackend


@runtime_checkable
class Platform(Protocol):
    """`device` of its backends is torch's name of the device that tensors lie on; their logits the host samples."""

    def num_devices(self) -> int: ...

    def backend(self, index: int) -> HostBackend:
        """For the rank `index`, whose device is current from now on."""
        ...

    def free_bytes(self, index: int) -> int:
        """What the KV cache of rank `index` may take, once the weights are there."""
        ...


def platform_of(config: Config) -> Platform | None:
    """None: the CPU, or CUDA. Raises ConfigError when it has too few devices."""
    name = config.model.platform
    if not name:
        return None
    platform: Platform = load_plugins(PluginKind.PLATFORM, (name,), Platform)[name]  # type: ignore[type-abstract]
    found, needed = platform.num_devices(), config.parallel.tensor_parallel_size
    if found < needed:
        raise ConfigError(
            f"tensor_parallel_size={needed} needs {needed} devices, platform={name} has {found}; "
            f"use tensor_parallel_size={found}"
        )
    return platform
