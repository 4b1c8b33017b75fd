"""Every message is decoded unchanged, and values out of bounds are refused."""

import random
import subprocess
import sys
from enum import Enum
from typing import Annotated, Any, Literal, get_args

import msgspec
import pytest
from msgspec import Meta, inspect

from paged_serve.protocol.messages import control, engine_core, worker
from paged_serve.protocol.messages.config import Config, SchedulerConfig, ServerConfig
from paged_serve.protocol.messages.engine_core import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreRequest,
    FromEngineCore,
    Logprobs,
    RequestRejected,
    ToEngineCore,
    TokenColumns,
)
from paged_serve.protocol.messages.handshake import UNIONS, check_hello, handshake_hello, identity, protocol_hash
from paged_serve.protocol.messages.loading import startup
from paged_serve.protocol.messages.message import (
    MAX_TOKENS_PER_MESSAGE,
    Count,
    Message,
    pack_ids,
    pack_int64,
    schema_hash,
    struct_types,
    unpack_ids,
    unpack_int64,
)
from paged_serve.protocol.messages.sampling_params import BOUNDS, SamplingParams
from paged_serve.protocol.messages.worker import ModelRunnerOutput, NewRow, RowLogprobs, SchedulerOutput

MESSAGES = [(link, cls) for link, union in UNIONS.items() for cls in get_args(union)]
STRUCTS = struct_types(*UNIONS.values())


def wire(message: Any, union: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)


@pytest.mark.parametrize(("link", "cls"), MESSAGES)
def test_every_message_survives_the_wire(link, cls, random_message):
    rng = random.Random(cls.__qualname__)
    for _ in range(50):
        message = random_message(cls, rng)
        assert wire(message, UNIONS[link]) == message


@pytest.mark.parametrize(("link", "cls"), MESSAGES)
def test_extra_and_missing_items_and_unknown_tags_are_refused(link, cls, random_message):
    items = msgspec.msgpack.decode(msgspec.msgpack.encode(random_message(cls, random.Random(1))))
    required = [field for field in inspect.type_info(cls).fields if field.required]
    broken = [[*items, 0], ["Unknown", *items[1:]], items[1:], [], [cls.__name__.encode(), *items[1:]]]
    broken += [items[: len(required)]] if required else []
    for bad in broken:
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=UNIONS[link])


@pytest.mark.parametrize("cls", STRUCTS)
def test_every_field_refuses_every_wrong_type(cls, random_message):
    """Each field is replaced by values of all types; a value that is decoded must have the declared type."""
    rng = random.Random(cls.__qualname__)
    wrong = [None, True, -1, 2**63, 1.5, float("nan"), "x", b"xyz", [1], {"a": 1}, [[[[]]]]]
    good = msgspec.to_builtins(random_message(cls, rng), builtin_types=(bytes,))
    for place in range(len(good)) if isinstance(good, list) else list(good):
        for value in wrong:
            bad = good.copy()
            bad[place] = value
            try:
                decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=cls)
            except msgspec.ValidationError:
                continue
            assert wire(decoded, cls) == decoded


def unbounded(node: Any) -> list[str]:
    """Parts of a type without a size limit."""
    match node:
        case inspect.StrType() | inspect.BytesType() if node.max_length is None:
            return [type(node).__name__]
        case inspect.IntType() | inspect.FloatType() if None in (
            node.le,
            node.ge if node.ge is not None else node.gt,
        ):
            return [type(node).__name__]
        case inspect.VarTupleType():
            return [*(["tuple"] if node.max_length is None else []), *unbounded(node.item_type)]
        case inspect.DictType():
            too_long = ["dict"] if node.max_length is None else []
            return [*too_long, *unbounded(node.key_type), *unbounded(node.value_type)]
        case inspect.UnionType():
            return [name for part in node.types for name in unbounded(part)]
        case inspect.AnyType() | inspect.RawType() | inspect.ExtType() | inspect.ListType() | inspect.CustomType():
            return [type(node).__name__]
    return []


@pytest.mark.parametrize("cls", STRUCTS)
def test_no_field_is_without_bounds(cls):
    for field in inspect.type_info(cls).fields:
        if cls is SamplingParams and field.name in {*BOUNDS, "logit_bias"}:
            continue  # in its own table: test_sampling_params.py
        assert not unbounded(field.type), f"{cls.__qualname__}.{field.name}: {unbounded(field.type)} without a limit"
    assert cls.__struct_config__.forbid_unknown_fields


REQUEST = EngineCoreRequest(1, pack_ids([1, 2]), SamplingParams())


@pytest.mark.parametrize(
    ("message", "union"),
    [
        (msgspec.structs.replace(REQUEST, request_id=-1), ToEngineCore),
        (msgspec.structs.replace(REQUEST, request_id=2**62 + 1), ToEngineCore),
        (msgspec.structs.replace(REQUEST, prompt_token_ids=bytes(4 * MAX_TOKENS_PER_MESSAGE + 4)), ToEngineCore),
        (msgspec.structs.replace(REQUEST, cache_salt="x" * 129), ToEngineCore),
        (AbortRequests(tuple(range(65537))), ToEngineCore),
        (engine_core.OutputsReceived(2**31), ToEngineCore),
        (RequestRejected(1, engine_core.RejectReason.INVALID, "", retry_after_s=float("nan")), FromEngineCore),
        (RequestRejected(1, engine_core.RejectReason.INVALID, "", retry_after_s=float("inf")), FromEngineCore),
        (RequestRejected(1, engine_core.RejectReason.INVALID, "x" * 16385), FromEngineCore),
        (control.Ready(dict.fromkeys(map(str, range(65)), "")), control.FromChild),
        (control.Welcome(Config(server=ServerConfig(drain_timeout_s=float("inf")))), control.ToChild),
        (control.Welcome(Config(scheduler=SchedulerConfig(max_num_seqs=0))), control.ToChild),
        (startup.CreateKVCache(-1), worker.ToWorker),
        (worker.SchedulerOutput(0, 0, chunks=(worker.Chunk(65536, 1),)), worker.ToWorker),
        (worker.ModelRunnerOutput(0, 0, b"", float("nan")), worker.ToCoreFromWorker),
    ],
)
def test_values_out_of_bounds_are_refused(message, union):
    with pytest.raises(msgspec.ValidationError):
        wire(message, union)


def test_columns_that_do_not_fit_together_are_refused():
    four, eight = bytes(4), bytes(8)
    for make in (
        lambda: EngineCoreRequest(1, b"abc", SamplingParams()),
        lambda: EngineCoreRequest(1, four, SamplingParams(), resume_token_ids=(four, b"abc")),
        lambda: TokenColumns(four, four, 0, four),
        lambda: TokenColumns(eight, four, 0, eight),
        lambda: EngineCoreOutput(1, 0, b"abcde"),
        lambda: Logprobs(eight, four, four),
        lambda: Logprobs(eight, eight, b""),
        lambda: Logprobs(bytes(12), bytes(12), eight),
        lambda: RowLogprobs(0, eight, four, 1),
        lambda: SchedulerOutput(0, 0, extended_tables=eight, extended_block_ids=four),
        lambda: NewRow(0, eight, 3, 0, (b"",), 0, (), SamplingParams()),
        lambda: NewRow(0, eight, 2, 2, (b"",), 0, (), SamplingParams()),
        lambda: NewRow(0, eight, 2, 0, (b"abc",), 0, (), SamplingParams()),
        lambda: SchedulerOutput(0, 0, decode_joins=b"abc"),
        lambda: ModelRunnerOutput(0, 0, b"abc", 0.0),
    ):
        with pytest.raises(ValueError, match=r"bytes|columns|tokens"):
            make()


def test_deep_nesting_is_an_error_and_not_a_crash():
    for union in UNIONS.values():
        with pytest.raises((msgspec.ValidationError, RecursionError)):
            msgspec.msgpack.decode(b"\x91" * 1_000_000, type=union)
        with pytest.raises((msgspec.ValidationError, RecursionError)):
            msgspec.msgpack.decode(b"\x9a\xa5Hello" + b"\x91" * 1_000_000, type=union)


def test_token_ids_pack_to_four_little_endian_bytes_each():
    assert pack_ids([1, 2**31 - 1]) == b"\x01\x00\x00\x00\xff\xff\xff\x7f"
    assert list(unpack_ids(pack_ids(range(1000)))) == list(range(1000))
    assert list(unpack_int64(pack_int64([0, 2**62]))) == [0, 2**62]
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"abc")


def message_type(fields: list[tuple[Any, ...]], name: str = "Probe") -> Any:
    return msgspec.defstruct(name, fields, bases=(Message,), frozen=True)


def test_the_schema_hash_does_not_depend_on_what_was_imported_first_nor_on_docstrings():
    """Equal annotations share one object, and 1000 equals 1000.0; `python -OO` has no docstrings."""
    first = "from typing import Annotated; from msgspec import Meta\n"
    first += "kept = [Annotated[float, Meta(ge=0, le=86400)], Annotated[float, Meta(ge=0.001, le=1000)]]\n"
    program = "from paged_serve.protocol.messages.handshake import protocol_hash; print(protocol_hash())"
    starts = (["-c", program], ["-c", first + program], ["-OO", "-c", program])
    hashes = {subprocess.check_output([sys.executable, *start]) for start in starts}
    assert hashes == {f"{protocol_hash()}\n".encode()}


def test_the_schema_hash_sees_every_change_of_a_field():
    variants = [
        [("rank", Count), ("blocks", Count)],
        [("blocks", Count), ("rank", Count)],  # swapped: the same types in the same places
        [("rank", Count), ("num_blocks", Count)],
        [("rank", Count)],
        [("rank", Count), ("blocks", int)],
        [("rank", Count), ("blocks", Annotated[int, Meta(ge=0, le=7)])],
        [("rank", Count), ("blocks", Count, 0)],
        [("rank", Count), ("blocks", Count, 1)],
        [("rank", Count), ("blocks", Count, msgspec.field(default_factory=int))],
        [("rank", Count), ("blocks", Count | None)],
        [("rank", Count), ("blocks", list[Count])],
        [("rank", Count), ("blocks", list[Count | None])],
        [("rank", Count), ("blocks", Literal["a", "b"])],
        [("rank", Count), ("blocks", Literal["a", "c"])],
        [("rank", Count), ("blocks", Enum("Kind", {"A": 1, "B": 2}))],
        [("rank", Count), ("blocks", Enum("Kind", {"A": 1, "B": 3}))],
        [("rank", Count), ("blocks", list[message_type([("inner", Count)], "Part")])],
        [("rank", Count), ("blocks", list[message_type([("inner", int)], "Part")])],
    ]
    hashes = [schema_hash(message_type(fields)) for fields in variants]
    assert len(set(hashes)) == len(variants)
    assert schema_hash(message_type(variants[0])) == hashes[0]
    assert schema_hash(message_type(variants[0], "Other")) != hashes[0]


def test_a_hello_of_another_version_or_schema_is_refused_with_the_reason():
    hello = handshake_hello("worker", 1, 2)
    assert check_hello(hello) == ""
    assert "protocol version 99" in check_hello(msgspec.structs.replace(hello, protocol_version=99))
    assert protocol_hash() in check_hello(msgspec.structs.replace(hello, schema_hash="0" * 16))


def test_identities_are_never_used_twice():
    assert len({identity("worker", 0, 0) for _ in range(1000)}) == 1000
    assert identity("engine-core", 3, 7).startswith(b"engine-core:3:7:")
