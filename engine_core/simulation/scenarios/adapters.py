"""The LoRA adapters of a simulation: more than there are places, one whose folder is at times bad, one that kills."""

import hashlib
import random
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from paged_serve.protocol.messages.config import LoraConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.loading.adapters import Adapter

from .scenario import Scenario

FICKLE, DEADLY = "fickle", "deadly"
REFUSED = "LoRA adapter"  # errors begin with it
BAD_FOLDER = "adapter_model.safetensors is not there"


def adapter_named(name: str) -> Adapter:
    return Adapter(name, f"/adapters/{name}", hashlib.sha256(name.encode()).hexdigest())


USUAL = tuple(map(adapter_named, ("a", "b", "c", "d", FICKLE)))
ALL = (*USUAL, adapter_named(DEADLY))


def with_adapters(scenario: Scenario) -> Scenario:
    """Half of the servers have places for adapters."""
    rng = random.Random(f"adapters of {scenario.seed}")
    max_loras = rng.choice((0, 0, 0, 1, 2, 3))
    if not max_loras:
        return scenario
    return replace(
        scenario,
        config=replace_struct(scenario.config, lora=LoraConfig(max_loras)),
        adapters=rng.choice((USUAL[:2], USUAL, ALL)),
        load_speed=rng.choice((0.05, 0.3, 1.0)),
    )


def with_adapter(request: EngineCoreRequest, scenario: Scenario) -> EngineCoreRequest:
    """Three quarters of the requests name an adapter."""
    if not scenario.adapters:
        return request
    rng = random.Random(f"adapter of {request.request_id} in {scenario.seed}")
    return request if rng.random() < 0.25 else replace_struct(request, adapter=rng.choice(scenario.adapters))


def may_be_refused(request: EngineCoreRequest, reason: str) -> bool:
    """Whether `reason` may end this request instead of its output."""
    adapter = request.adapter
    if adapter is None or not reason.startswith(f"{REFUSED} {adapter.name!r}"):
        return False
    return adapter.name == (FICKLE if reason.endswith(BAD_FOLDER) else DEADLY)
