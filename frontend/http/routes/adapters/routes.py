"""The routes by which clients load and unload LoRA adapters, in vLLM's form."""

import logging
import os
from functools import partial

import msgspec

from paged_serve.protocol.errors import ConfigError

from ....adapters.known_adapters import NotRecorded
from ....conversation.strict_json import decode_body
from ....text.off_loop import LONG
from ...exchange.errors import HttpError
from ...exchange.exchange import Exchange
from ...service import Service
from ..route_spec import RouteSpec

log = logging.getLogger(__name__)

_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lora_path`: of a PEFT folder on the server's machine."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False  # replace an adapter of this name; requests that run keep the former one
    base_model_name: str | None = None  # has no effect
    is_3d_lora_weight: bool = False  # has no effect


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lora_name: str = ""
    lora_int_id: int | None = None  # has no effect


async def load_adapter(service: Service, exchange: Exchange) -> None:
    """Make an adapter known by a name for requests. Its folder is read now; workers load it for its first request."""
    _check_allowed(service)
    body, _ = decode_body(LoadAdapterRequest, await exchange.body(), service.config.server.lenient)
    if not body.lora_name or not body.lora_path:
        missing = "lora_path" if body.lora_name else "lora_name"
        raise HttpError(400, "Both 'lora_name' and 'lora_path' must be provided.", missing)
    if body.lora_name in service.model_names:
        raise HttpError(400, f"The base model has the name '{body.lora_name}'; choose another.", "lora_name")
    try:
        load = partial(service.adapters.load, body.lora_name, body.lora_path, in_place=body.load_inplace)
        adapter = await service.off_loop(LONG, load)
    except ConfigError as error:
        status = 400 if await service.off_loop(LONG, _is_folder, body.lora_path) else 404
        raise HttpError(status, f"{error}.", "lora_path") from error
    except NotRecorded as error:
        raise _unavailable(error) from error
    log.info("adapter added name=%r path=%s digest=%.12s", adapter.name, adapter.path, adapter.digest)
    await exchange.send(200, f"Success: LoRA adapter '{body.lora_name}' added successfully.".encode(), _TEXT)


async def unload_adapter(service: Service, exchange: Exchange) -> None:
    """Forget an adapter. Requests that run or wait with it are completed."""
    _check_allowed(service)
    body, _ = decode_body(UnloadAdapterRequest, await exchange.body(), service.config.server.lenient)
    if not body.lora_name:
        raise HttpError(400, "'lora_name' needs to be provided to unload a LoRA adapter.", "lora_name")
    try:
        was_known = await service.off_loop(LONG, service.adapters.unload, body.lora_name)
    except NotRecorded as error:
        raise _unavailable(error) from error
    if not was_known:
        raise HttpError(404, f"The lora adapter '{body.lora_name[:200]}' cannot be found.", "lora_name")
    log.info("adapter removed name=%r", body.lora_name)
    await exchange.send(200, f"Success: LoRA adapter '{body.lora_name}' removed successfully.".encode(), _TEXT)


def _unavailable(error: NotRecorded) -> HttpError:
    return HttpError(503, f"{error}.")


def _is_folder(path: str) -> bool:
    return "\0" not in path and os.path.isdir(os.path.expanduser(path))


def _check_allowed(service: Service) -> None:
    if not service.config.lora.allow_loading:
        raise HttpError(403, "This server does not let clients load adapters; start it with --allow-lora-loading.")


_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADAPTER_ROUTES = (
    RouteSpec("POST", _LOAD, load_adapter, "Load a LoRA adapter", (LoadAdapterRequest,), statuses=(403,)),
    RouteSpec("POST", _UNLOAD, unload_adapter, "Unload a LoRA adapter", (UnloadAdapterRequest,), statuses=(403,)),
)
