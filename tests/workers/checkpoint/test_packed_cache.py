"""Packed weights that are kept in a folder give the same model, and a file of another model is never used."""

import errno
import logging
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.models.packed_weights import cache as packed_cache

from ..paged_loop import PagedLoop
from ..tiny_models.checkpoints import random_tokens
from ..tiny_models.quantized_checkpoints import write_quantized
from ..tiny_models.tiny_model import write_tiny_model

PROMPT = random_tokens(40, vocab_size=200)
FORMATS = ["float", "int8", "int4", "gptq", "tied"]


class OneOf(TensorParallelGroup):
    """One rank of several that does not communicate with the others."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


@pytest.fixture
def pool(make_pool):
    made = make_pool(2)
    if made is None:
        pytest.skip("the kernels are not built")
    return made


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_model(folder)
    return folder


@pytest.fixture
def load(tmp_path, pool):
    def load(folder, group=None, kept="kept", **fields):
        config = ModelConfig(device="cpu", packed_weights_dir=str(tmp_path / kept) if kept else "", **fields)
        return load_model(str(folder), config, group or TensorParallelGroup(), lambda done, total: None, pool)

    return load


@pytest.fixture
def reads(monkeypatch):
    """Counts the tensors that are read from files of packed weights."""
    counted = []
    read_into = packed_cache.read_into
    monkeypatch.setattr(packed_cache, "read_into", lambda *where: (counted.append(where), read_into(*where))[1])
    return counted


def the_file(tmp_path):
    (path,) = (tmp_path / "kept").iterdir()
    return path


def logits(model):
    loop = PagedLoop(model)
    return loop.step([(loop.row(PROMPT), len(PROMPT))]).clone()


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_load_reads_no_checkpoint_and_has_the_same_bits(form, tmp_path, load, reads, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_model(folder, tie_word_embeddings=form == "tied")
    if form == "gptq":
        write_quantized(folder, tmp_path / "gptq", "gptq-desc-act-asymmetric")
        folder = tmp_path / "gptq"
    how = {"quantization": form} if form in ("int8", "int4") else {}
    plain, built = load(folder, kept="", **how), load(folder, **how)
    assert not reads
    monkeypatch.setattr("paged_serve.workers.checkpoint.safetensors_files.Checkpoint.read", None)
    kept = load(folder, **how)
    assert reads
    expected = logits(plain)
    for model in (built, kept):
        assert torch.equal(logits(model), expected)
        assert (model.weights_bytes, model.quantization) == (plain.weights_bytes, plain.quantization)


def test_progress_of_a_second_load_reaches_the_total(tmp_path, checkpoint, load, pool):
    load(checkpoint)
    calls = []
    config = ModelConfig(device="cpu", packed_weights_dir=str(tmp_path / "kept"))
    load_model(str(checkpoint), config, TensorParallelGroup(), lambda *call: calls.append(call), pool)
    done = [loaded for loaded, _ in calls]
    assert len(set(done)) > 4
    assert done == sorted(done)
    assert calls[-1][0] == calls[-1][1]


def test_each_rank_and_setting_has_its_own_file(tmp_path, checkpoint, load, reads):
    load(checkpoint, OneOf(0, 2))
    load(checkpoint, OneOf(1, 2))
    load(checkpoint)
    load(checkpoint, dtype="float32")
    load(checkpoint, quantization="int8")
    load(checkpoint, quantization="int4", quantization_group_size=64)
    assert len(list((tmp_path / "kept").iterdir())) == 6
    assert not reads
    load(checkpoint, OneOf(1, 2))
    assert reads


def test_a_touched_checkpoint_is_recognized_by_its_bytes(checkpoint, load, reads):
    load(checkpoint)
    os.utime(checkpoint / "model.safetensors")
    load(checkpoint)
    assert reads


def test_a_changed_checkpoint_is_packed_again(tmp_path, checkpoint, load, reads, caplog):
    load(checkpoint)
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, path)
    with caplog.at_level(logging.WARNING):
        changed = load(checkpoint)
    assert not reads
    assert caplog.text.count("the checkpoint has changed") == 1
    assert torch.equal(logits(load(checkpoint)), logits(changed))
    assert torch.equal(logits(changed), logits(load(checkpoint, kept="")))


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", ["first byte", "a weight", "record", "torn", "empty"])
def test_a_damaged_file_is_reported_once_and_rewritten(damage, tmp_path, checkpoint, load, reads, caplog):
    expected = logits(load(checkpoint))
    path = the_file(tmp_path)
    size = path.stat().st_size
    match damage:
        case "first byte":
            flip(path, 0)
        case "a weight":
            flip(path, 3 * 4096 + 77)
        case "record":
            flip(path, size - 500)
        case "torn":
            os.truncate(path, size // 2)
        case "empty":
            os.truncate(path, 0)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits(load(checkpoint)), expected)
    assert len(caplog.records) == 1
    assert "packed again" in caplog.text
    reads.clear()
    assert torch.equal(logits(load(checkpoint)), expected)
    assert reads


@pytest.mark.parametrize("writes", [0, 1, 9])
def test_a_full_disk_leaves_no_file_and_stops_no_load(writes, tmp_path, checkpoint, load, monkeypatch, caplog):
    real, left = os.pwrite, iter(range(writes))

    def pwrite(file, data, at):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with caplog.at_level(logging.WARNING):
        model = load(checkpoint)
    assert list((tmp_path / "kept").iterdir()) == []
    assert caplog.text.count("No space left") == 1
    assert torch.equal(logits(model), logits(load(checkpoint, kept="")))


def test_a_load_that_fails_leaves_no_file(tmp_path, checkpoint, load):
    path = checkpoint / "model.safetensors"
    save_file(load_file(path) | {"unexplained": torch.zeros(3)}, path)
    with pytest.raises(ConfigError, match="unexplained"):
        load(checkpoint)
    assert list((tmp_path / "kept").iterdir()) == []


def test_files_of_a_killed_writer_are_removed_and_those_of_a_living_one_are_not(tmp_path, checkpoint, load):
    load(checkpoint)
    path = the_file(tmp_path)
    path.unlink()
    dead = path.with_name(f"{path.stem}-dead.part")
    dead.write_bytes(b"half")
    file, living = packed_cache.create_file(path)
    load(checkpoint)
    assert sorted(tmp_path.joinpath("kept").iterdir()) == sorted([path, tmp_path / "kept" / os.path.basename(living)])
    os.close(file)


def test_files_of_a_killed_writer_may_be_removed_by_several_servers_at_once(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    left = tmp_path / "kept-dead.part"
    left.write_bytes(b"half")
    real = os.open

    def open_late(name, *rest, **more):
        left.unlink(missing_ok=True)  # the other server was faster
        return real(name, *rest, **more)

    monkeypatch.setattr(os, "open", open_late)
    file, _ = packed_cache.create_file(path)
    os.close(file)


def test_a_folder_that_cannot_be_made_is_refused_with_a_remedy(tmp_path, checkpoint, load):
    (tmp_path / "kept").write_text("a file")
    with pytest.raises(ConfigError, match=r"packed_weights_dir=.*kept cannot be written to: .*; name a folder"):
        load(checkpoint)


def test_plain_torch_writes_no_file_and_logs_that(tmp_path, checkpoint, caplog):
    config = ModelConfig(device="cpu", packed_weights_dir=str(tmp_path / "kept"))
    with caplog.at_level(logging.WARNING):
        load_model(str(checkpoint), config, TensorParallelGroup(), lambda done, total: None)
    assert "nothing is kept" in caplog.text
    assert not (tmp_path / "kept").exists()
