"""Adapters load beside the steps, and come into their places between two of them."""

import dataclasses
import threading

import pytest
import torch

from paged_serve.protocol.messages.loading.adapters import LoadAdapter
from paged_serve.workers.adapters import loading as module
from paged_serve.workers.adapters.loading import AdapterLoading

from ..paged_loop import PagedLoop
from ..tiny_models.made_adapters import make_adapter
from ..tiny_models.tiny_model import write_tiny_model
from .loaded import LORA, answer_of, load, step_of


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    write_tiny_model(folder)
    return folder


@pytest.fixture
def model(base):
    return load(base, lora=LORA)


@pytest.fixture
def loading(model):
    loading = AdapterLoading(model.adapters, 3)
    yield loading
    loading.close()


def logits(model, place):
    loop = PagedLoop(step_of(model, place))
    return loop.prefill(loop.row([5, 6, 7]))


def test_steps_run_while_an_adapter_loads(tmp_path, base, model, loading, monkeypatch):
    made, may_load = make_adapter(tmp_path / "adapter", base), threading.Event()

    def place_later(*arguments):
        assert may_load.wait(30)
        return placed(*arguments)

    placed = module.place_adapter
    monkeypatch.setattr(module, "place_adapter", place_later)
    before = logits(model, 0)
    loading.start(LoadAdapter(2, made.message()))
    assert loading.take() is None
    assert torch.equal(logits(model, 0), before)
    assert torch.equal(logits(model, 2), before)  # the place is empty
    may_load.set()
    answer = answer_of(loading)
    assert (answer.rank, answer.place, answer.digest, answer.error) == (3, 2, made.message().digest, "")
    assert answer.num_bytes >= sum(each.stat().st_size for each in made.folder.glob("*.safetensors")) // 2 - 4096
    assert not torch.equal(logits(model, 2), before)
    assert torch.equal(logits(model, 0), before)


def test_a_place_drops_its_adapter_when_another_is_ordered(tmp_path, base, model, loading):
    one, other = (
        make_adapter(tmp_path / str(seed), base, seed, targets=(target,))
        for seed, target in enumerate(("q_proj", "down_proj"))
    )
    alone = {}
    for made in (one, other):
        loading.start(LoadAdapter(1, made.message()))
        answer_of(loading)
        alone[made.folder.name] = logits(model, 1)
    assert not torch.equal(alone["0"], alone["1"])
    for order in (one, other, one):
        loading.start(LoadAdapter(1, order.message()))
    answers = [answer_of(loading) for _ in range(3)]
    assert [answer.digest for answer in answers] == [each.message().digest for each in (one, other, one)]
    assert torch.equal(logits(model, 1), alone["0"])


def test_a_refused_adapter_leaves_its_place_empty_and_the_next_one_loads(tmp_path, base, model, loading):
    good = make_adapter(tmp_path / "good", base)
    bad = dataclasses.replace(make_adapter(tmp_path / "bad", base))
    (bad.folder / "adapter_model.safetensors").write_bytes(b"short")
    empty = logits(model, 0)
    loading.start(LoadAdapter(1, good.message()))
    loading.start(LoadAdapter(1, bad.message()))
    loading.start(LoadAdapter(2, good.message()))
    loading.start(LoadAdapter(5, good.message()))
    answers = {answer.place: answer for answer in (answer_of(loading) for _ in range(4))}
    assert "adapter_model.safetensors" in answers[1].error
    assert answers[2].error == ""
    assert "max_loras=4" in answers[5].error
    assert torch.equal(logits(model, 1), empty)
