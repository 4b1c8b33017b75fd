"""GGUF headers: what the gguf package writes is read; what a file cannot contain is refused in one line."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import GgufFile, check_parts, part_paths, read_gguf
from paged_serve.protocol.gguf.cursor import MAX_HEADER_BYTES
from paged_serve.protocol.gguf.metadata import Metadata, shortest

VALUES = {
    "general.name": "a name with ünicode",
    "a.whole": 7,
    "a.signed": -3,
    "a.number": 1e-5,
    "a.truth": True,
    "a.texts": ["one", "", "drei"],
    "a.numbers": [0.5, -1.25],
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(num_tensors: int, num_keys: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + rest


def info(name: str = "t", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in VALUES.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value) if value >= 0 else writer.add_int16(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix", np.arange(96, dtype=np.float16).reshape(3, 32))
    blocks = gguf.quantize(np.ones((4, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def same_as_the_package(found: GgufFile) -> bool:
    """Whether metadata and tensors are those that the gguf package reads."""
    read = gguf.GGUFReader(found.path)
    keys = {name: field.contents() for name, field in read.fields.items() if not name.startswith("GGUF.")}
    places = {
        tensor.name: (tuple(tensor.shape.tolist())[::-1], tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        for tensor in read.tensors
    }
    ours = {
        name: (tensor.shape, tensor.format.name, tensor.start, tensor.num_bytes)
        for name, tensor in found.tensors.items()
    }
    return repr(keys) == repr(found.metadata.values) and places == ours


def test_metadata_and_tensors_are_those_of_the_package(file):
    found = read_gguf(file)
    assert same_as_the_package(found)
    assert found.metadata.number("a.number") == 1e-5
    assert found.metadata.texts("a.texts") == VALUES["a.texts"]
    assert found.tensors["blocks"].num_bytes == 4 * 2 * 34


def test_version_2_is_read_like_version_3(file):
    data = file.read_bytes()
    before = read_gguf(file)
    file.write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    assert read_gguf(file).metadata.values == before.metadata.values


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "its magic number takes 4 bytes"),
        (b"GGML" + bytes(40), "does not begin with GGUF"),
        (header(0, 0, version=1), "has version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian, of version 3"),
        (header(1 << 40, 0), "claims 1099511627776 tensors"),
        (header(0, 1 << 60), "metadata keys"),
        (header(0, 1, text("k")), "the type of k takes 4 bytes"),
        (header(0, 1, text("k") + struct.pack("<I", 99)), "k has the type 99"),
        (header(0, 1, text("k") + struct.pack("<IB", 7, 2)), "neither 0 nor 1"),
        (header(0, 1, text("k") + struct.pack("<IQ", 8, 1 << 62)), "k has 4611686018427387904 bytes"),
        (header(0, 1, text("k") + struct.pack("<IQ", 8, 100)), "k takes 100 bytes"),
        (header(0, 1, text("k") + struct.pack("<IQ", 8, 1) + b"\xff"), "not UTF-8"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 8, 1 << 62)), "items"),
        (header(0, 1, text("k") + struct.pack("<IIQ", 9, 9, 1)), "array of arrays"),
        (header(0, 2, (text("k") + struct.pack("<IB", 0, 1)) * 2), "k occurs twice"),
        (header(0, 1, text("general.alignment") + struct.pack("<II", 4, 24)), "power of two"),
        (header(0, 1, text("general.alignment") + struct.pack("<II", 4, 0)), "power of two"),
        (header(0, 1, text("general.alignment") + struct.pack("<IQ", 8, 0)), "must be a whole number"),
        (header(1, 0, info(shape=())), "0 dimensions"),
        (header(1, 0, info(shape=(1, 1, 1, 1, 1))), "5 dimensions"),
        (header(1, 0, info(shape=(0, 4))), "needs 1 to"),
        (header(1, 0, info(shape=(1 << 63, 1 << 63))), "needs 1 to"),
        (header(1, 0, info(kind=4)), "has the type 4"),
        (header(1, 0, info(shape=(48, 2), kind=2)), "not whole blocks of 32"),
        (header(1, 0, info(offset=1 << 63) + bytes(999)), "must be at 0"),
        (header(1, 0, info(offset=32) + bytes(999)), "must be at 0"),
        (header(2, 0, info("a") + info("b", offset=96) + bytes(999)), "must be at 128"),
        (header(2, 0, info("a") + info("a", offset=128) + bytes(999)), "a occurs twice"),
        (header(1, 0, info("x" * 129)), "has 129 bytes"),
        (header(1, 0, info("")), "printable ASCII"),
        (header(1, 0, info("two\nlines")), r"'two\nlines'; a name is printable ASCII"),
        (header(0, 1, text("ключ")), "printable ASCII"),
        (header(1, 0, info() + bytes(20)), "download it again"),
        (header(1, 0, info() + bytes(9999)), "its tensors end at byte"),
    ],
)
def test_what_a_file_cannot_contain_is_refused(data, message, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as refusal:
        read_gguf(path)
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_truncation_is_refused(file):
    data = file.read_bytes()
    end = max(tensor.start + tensor.num_bytes for tensor in read_gguf(file).tensors.values())
    for length in range(0, end, 7):
        file.write_bytes(data[:length])
        with pytest.raises(ConfigError, match="not a usable GGUF file"):
            read_gguf(file)


def test_a_header_is_not_read_beyond_its_limit(tmp_path):
    path = tmp_path / "sparse.gguf"
    path.write_bytes(header(0, 17, b"".join(text(f"k{i}") + struct.pack("<IIQ", 9, 10, 1 << 22) for i in range(1))))
    with path.open("r+b") as opened:
        opened.truncate(MAX_HEADER_BYTES * 4)
    with pytest.raises(ConfigError, match="not a usable GGUF file"):
        read_gguf(path)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Change, insert or remove a few bytes, most often in the header."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(changed) if rng.random() < 0.2 else min(len(changed), 900))
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                changed[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32, 2**63, 2**64 - 1)))
            case 3:
                changed[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                del changed[at : at + rng.randint(1, 8)]
            case 5:
                other = rng.randrange(len(changed))
                changed[at : at + 16] = changed[other : other + 16]
    return bytes(changed)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_a_mutated_file_is_refused_in_one_line_or_read_as_the_package_reads_it(count, file):
    data, rng = file.read_bytes(), random.Random(count)
    refusals, num_read = [], 0
    for index in range(count):
        file.write_bytes(mutated(data, rng))
        try:
            found = read_gguf(file)
        except ConfigError as refusal:
            refusals.append(str(refusal))
        else:
            num_read += 1
            assert same_as_the_package(found), index
    assert not any("\n" in refusal for refusal in refusals)
    assert min(len(refusals), num_read) > count / 20


def test_the_shortest_decimal_is_the_same_float32():
    rng = random.Random(4)
    numbers = [1e-5, 1e-6, 10000.0, 3.4028234663852886e38, 1e-45, 0.0, 500000.0, 1.0299999713897705, 1e300]
    numbers += [struct.unpack("<f", rng.randbytes(3) + bytes([rng.randrange(0x7F)]))[0] for _ in range(500)]
    for number in numbers:
        with np.errstate(over="ignore"):
            assert np.float32(shortest(number)) == np.float32(number)
    assert [shortest(float(np.float32(number))) for number in (1e-5, 1e6, 1.03)] == [1e-5, 1e6, 1.03]


def parts(tmp_path: Path, keys: list[dict[str, int]]) -> list[GgufFile]:
    return [GgufFile(tmp_path / "p.gguf", Metadata(tmp_path / "p.gguf", dict(each)), {}, "") for each in keys]


def test_a_model_in_parts_needs_all_of_them(tmp_path):
    paths = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    paths[0].touch()
    with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf is not in the same folder"):
        part_paths(paths[0])
    paths[1].touch()
    assert part_paths(paths[0]) == paths
    with pytest.raises(ConfigError, match="part 2 of 2; give the first"):
        part_paths(paths[1])
    check_parts(parts(tmp_path, [{"split.count": 2, "split.no": 0}, {"split.count": 2, "split.no": 1}]))
    with pytest.raises(ConfigError, match="in 3 parts, but there are 2"):
        check_parts(parts(tmp_path, [{"split.count": 3, "split.no": 0}, {"split.no": 1}]))
    with pytest.raises(ConfigError, match="is part 1 according to its metadata, not 2"):
        check_parts(parts(tmp_path, [{"split.count": 2, "split.no": 0}, {"split.no": 0}]))
    with pytest.raises(ConfigError, match="other tensors"):
        check_parts(parts(tmp_path, [{"split.tensors.count": 3}]))
