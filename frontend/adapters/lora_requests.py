"""LoRA adapters of LLM and AsyncLLM: vLLM's class for one, and its folder read."""

from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.config import LoraConfig
from paged_serve.protocol.messages.loading.adapters import Adapter

from .folders import AdapterFolders

FIELD = "lora_request"


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter: a name, a number that is ignored, and the path of its PEFT folder."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    base_model_name: str | None = None  # has no effect
    load_inplace: bool = False  # has no effect: a folder that has changed is another adapter

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path


class LoraRequests:
    """Turns requests for adapters into what the engine takes. May be used from several threads."""

    def __init__(self, config: LoraConfig):
        self._max_loras = config.max_loras
        self._folders = AdapterFolders(config.max_lora_rank)

    def adapter(self, asked: Any) -> Adapter | None:
        """None: the base model. Raises InvalidRequest if the adapter cannot be used."""
        if asked is None:
            return None
        names = ("lora_name", "lora_path")  # vLLM's own class is accepted, too
        name, path = (getattr(asked, field, None) for field in names)
        if not isinstance(name, str) or not isinstance(path, str) or not path:
            raise InvalidRequest(f"lora_request is {asked!r:.100}; pass LoRARequest(name, number, path)", FIELD)
        if not self._max_loras:
            raise InvalidRequest(
                f"lora_request is {name:.100}; this LLM serves the base model only: LLM(enable_lora=True, max_loras=N)",
                FIELD,
            )
        try:
            return self._folders.read(name, path)
        except ConfigError as error:
            raise InvalidRequest(str(error), FIELD) from error
