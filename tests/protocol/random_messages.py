"""Random valid messages of every type, their bounds included."""

import random
import re
from array import array
from enum import EnumMeta
from typing import Any

from msgspec import inspect

from paged_serve.protocol.messages.engine_core import EngineCoreRequest, Logprobs, TokenColumns
from paged_serve.protocol.messages.loading.kv_tiers import KEY_BYTES, DropBlocks, LoadBlocks, StoreBlocks, TierContents
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.samplers import Dry, RepetitionDetection, ThinkingBudget, Xtc
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar, StructuredOutputsParams
from paged_serve.protocol.messages.worker import (
    Chunk,
    ModelRunnerOutput,
    NewRow,
    RowLogprobs,
    RowPromptLogprobs,
    SchedulerOutput,
)

PATTERNED = ("*", "POST", "https://a.example:8443", "*.example", "/llm")


def column(rng: random.Random, rows: int, code: str = "i") -> bytes:
    return array(code, [rng.randrange(2**31) for _ in range(rows)]).tobytes()


def number(info: Any, rng: random.Random) -> int:
    low = -(2**63) if info.ge is None else info.ge
    high = 2**63 - 1 if info.le is None else info.le
    return rng.choice([low, high, rng.randint(low, high), rng.randint(low, min(high, low + 100))])


def text(rng: random.Random, longest: int) -> str:
    return "".join(rng.choice("ab\n\0é漢🙂") for _ in range(rng.randint(0, min(20, longest))))


def sampling_params(rng: random.Random) -> SamplingParams:
    ids = tuple(rng.randrange(2**31) for _ in range(rng.randint(0, 4)))
    return SamplingParams(
        n=rng.randint(1, 4),
        temperature=rng.uniform(0.1, 2.0),
        top_p=rng.uniform(0.1, 1.0),
        top_k=rng.choice([-1, 0, 40]),
        seed=rng.choice([None, -1, 2**63 - 1]),
        max_tokens=rng.choice([None, 100]),
        stop=("é", "\n\n")[: rng.randint(0, 2)],
        stop_token_ids=ids,
        bad_words_token_ids=(ids,) if ids else (),
        logit_bias=rng.choice([None, dict.fromkeys(ids, -0.5)]),
        allowed_token_ids=ids or None,
        grammar=None if ids else rng.choice([None, Grammar("start: é", (1, 2))]),
        thinking=rng.choice([None, ThinkingBudget(rng.randrange(9), (7,), (8, 9), rng.choice([None, 0, 2]))]),
        logprobs=None if ids else rng.choice([None, 0, 20]),
        logprob_token_ids=ids,
        skip_special_tokens=rng.random() < 0.5,
        dry=rng.choice([None, Dry(multiplier=0.8, breaker_token_ids=ids)]),
        xtc=rng.choice([None, Xtc(probability=0.5)]),
        repetition_detection=rng.choice([None, RepetitionDetection(max_pattern_size=3, min_count=2)]),
    )


def constrained(cls: Any, values: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Make fields consistent with each other."""
    rows, k = rng.randint(0, 4), rng.randint(0, 3)
    if cls is TokenColumns:
        values |= {"stream_ids": column(rng, 2 * rows), "first_positions": column(rng, rows)}
        values |= {"token_ids": column(rng, rows)}
    elif cls in (Logprobs, RowPromptLogprobs):
        values |= {name: column(rng, rows * (k + 1)) for name in ("token_ids", "logprobs")}
        values |= {"ranks": column(rng, rows)}
    elif cls is Pooled:
        values |= {"rows": rows, "columns": k, "values": column(rng, rows * k)}
    elif cls is RepetitionDetection:
        values |= {"max_pattern_size": rng.randint(8, 16), "min_pattern_size": rng.randint(0, 8), "min_count": 2 + rows}
    elif cls is Dry:
        values |= {"sequence_breakers": ("é", ":")[:rows]}
    elif cls is ThinkingBudget:
        values |= {name: tuple(rng.randrange(99) for _ in range(rng.randint(1, 3))) for name in ("begin", "end")}
    else:
        _constrain_steps(cls, values, rng, rows, k)
    return values


def _constrain_steps(cls: Any, values: dict[str, Any], rng: random.Random, rows: int, k: int) -> None:
    """The same for messages between a core and its workers, and of requests."""
    if cls is RowLogprobs:
        values |= {name: column(rng, k + 1) for name in ("token_ids", "logprobs")}
    elif cls is SchedulerOutput:
        values |= {"extended_tables": column(rng, rows), "extended_block_ids": column(rng, rows)}
        values |= {"copied_blocks": column(rng, 2 * k)}
    elif cls in (StoreBlocks, LoadBlocks, DropBlocks):
        values |= {"keys": rng.randbytes(rows * KEY_BYTES)}
        values |= {} if cls is DropBlocks else {"block_ids": column(rng, rows)}
    elif cls is TierContents:
        values |= {name: rng.randbytes(count * KEY_BYTES) for name, count in (("added", rows), ("removed", k))}
    elif cls is KVGroup:
        kinds = {"window": 0, "attention_chunk": 0, "is_state": False}
        kinds.pop(rng.choice(tuple(kinds)))
        values |= kinds
    elif cls is Chunk:
        values |= {"num_drafts": 0} if values["num_tokens"] != 1 else {}
    elif cls is ModelRunnerOutput:
        rows = rng.randrange(4)
        values |= {"num_drafted": column(rng, rows), "num_sampled": column(rng, rows)}
    elif cls is NewRow:
        values |= {"token_ids": column(rng, 5), "prompt_len": rng.randint(0, 5)}
        values |= {"num_computed_tokens": rng.randint(0, 4), "block_tables": (column(rng, rows), column(rng, k))}
    elif cls is EngineCoreRequest:
        resumed = rng.choice([0, values["sampling_params"].n])
        values |= {"resume_token_ids": tuple(column(rng, rng.randint(0, 3)) for _ in range(resumed))}


def value_of(info: Any, rng: random.Random) -> Any:
    """A random value of a msgspec type description, its bounds included."""
    match info:
        case inspect.UnionType(types=types):
            return value_of(rng.choice(types), rng)
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.IntType():
            return number(info, rng)
        case inspect.FloatType():
            low = info.ge if info.ge is not None else info.gt
            return rng.uniform(low, min(info.le, low + 1000)) if low is not None else rng.uniform(-1e9, 1e9)
        case inspect.StrType():
            if info.pattern is not None:  # the pattern of a header's value, a name, a path or a digest
                digest = "".join(rng.choices("0123456789abcdef", k=64))
                words = ["".join(rng.choices("!09AZaz~", k=rng.randint(1, 20))), digest, *PATTERNED]
                words = [word for word in words if len(word) <= (info.max_length or len(word))]
                return rng.choice([word for word in words if re.search(info.pattern, word)])
            return text(rng, info.max_length or 20) or "a" * (info.min_length or 0)
        case inspect.BytesType():
            return column(rng, rng.randint(0, 5))
        case inspect.VarTupleType():
            return tuple(value_of(info.item_type, rng) for _ in range(rng.randint(info.min_length or 0, 3)))
        case inspect.DictType():
            return {value_of(info.key_type, rng): value_of(info.value_type, rng) for _ in range(rng.randint(0, 3))}
        case inspect.EnumType(cls=cls):
            return rng.choice(list(cls))
        case inspect.LiteralType(values=values):
            return rng.choice(values)
        case inspect.StructType(cls=cls):
            return struct_of(cls, rng)
    raise AssertionError(f"no generator for {info}")


def struct_of(cls: Any, rng: random.Random) -> Any:
    if isinstance(cls, EnumMeta):
        return rng.choice(list(cls))
    if cls is SamplingParams:
        return sampling_params(rng)
    if cls is StructuredOutputsParams:
        kinds = ({"json": '{"type": "string"}'}, {"regex": "a+"}, {"choice": ("a", "b")}, {"json_object": True})
        return cls(**rng.choice(kinds))
    fields = inspect.type_info(cls).fields  # type: ignore[attr-defined]
    return cls(**constrained(cls, {field.name: value_of(field.type, rng) for field in fields}, rng))
