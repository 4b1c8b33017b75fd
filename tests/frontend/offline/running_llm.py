"""LLM over a fake engine: the real client, tokenizer and text, and a supervisor that starts no process."""

from paged_serve.frontend.offline import local_engine
from paged_serve.frontend.offline.llm import LLM
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..fake_core import generate
from ..fake_supervisor import FakeSupervisor, write_model_of_numbers


def models(tmp_path_factory):
    """The folder of a model whose tokens are numbers."""
    return write_model_of_numbers(tmp_path_factory.mktemp("model"))


def llms(model, monkeypatch):
    """A function start(script) that starts an LLM over a core that follows the script."""
    monkeypatch.setattr(local_engine, "Supervisor", FakeSupervisor)
    started = []

    def start(script=None, **options):
        monkeypatch.setattr(FakeSupervisor, "script", staticmethod(script or generate()))
        started.append(LLM(**{"model": model, **options}))
        return started[-1]

    yield start
    for llm in started:
        llm.close()


def core_of(llm):
    return llm._engine.supervisor.core


def text_of(ids):
    return "".join(f" {token}" for token in ids)


def params(max_tokens=4, **fields):
    return SamplingParams(max_tokens=max_tokens, **fields)
