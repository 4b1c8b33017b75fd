"""Models that do not run through transformers: each is refused by name, with the reason, before it serves."""

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.models.transformers_impl import choice
from paged_serve.workers.models.transformers_impl.checks.row_rules import RowWatch

from ...paged_loop import PagedLoop
from ...ranks import on_ranks
from ...tiny_models.checkpoints import ours, random_tokens, reference_logits
from ...tiny_models.transformers_models import write, write_without_family

CODE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaModel


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnBase(LlamaModel):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        x = output.last_hidden_state
        output.last_hidden_state = {result}
        return output


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = OwnBase(config)
        self.post_init()
"""


def write_own(folder, result="x"):
    """A Llama whose last hidden states `x` become `result`, with its code in the folder."""
    model = write("Llama", folder)
    (folder / "modeling_own.py").write_text(CODE.replace("{result}", result))
    fields = json.loads((folder / "config.json").read_text())
    fields |= {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return model


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch, tmp_path):
    """transformers copies the code of a folder there before it runs it."""
    from transformers import dynamic_module_utils

    for module in (dynamic_module_utils,):
        monkeypatch.setattr(module, "HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("Doge", {}, "num_experts=16384 means experts.*nearest architecture that runs natively is OlmoeForC"),
        ("RecurrentGemma", {}, "lru_width=128 means recurrent layers"),
        ("Youtu", {}, "kv_lora_rank=512 means latent attention"),
        ("XGLM", {}, "does not call the attention interface of transformers"),
        ("DiffLlama", {}, "layer 0 of 3 attends 2 times"),
        ("GraniteSWA", {"sliding_window": 24}, "layer 0 passes s_aux to its attention"),
    ],
)
def test_another_kind_of_layer_is_refused_by_name(name, options, reason, tmp_path, make_pool):
    write(name, tmp_path, **options)
    with pytest.raises(
        ConfigError, match=f"^architecture {name}ForCausalLM with --model-impl transformers: .*{reason}"
    ):
        ours(tmp_path, pool=make_pool(), model_impl="transformers")


def test_an_architecture_that_nothing_knows_is_refused(tmp_path, make_pool):
    write("Arcee", tmp_path)
    change(tmp_path, architectures=["ArceeForCausalLLM"])
    with pytest.raises(ConfigError, match=r"ArceeForCausalLLM .* transformers \S+ has no such decoder"):
        ours(tmp_path, pool=make_pool())
    with pytest.raises(ConfigError, match=r"^architecture ArceeForCausalLLM is not supported; supported: Llama"):
        ours(tmp_path, pool=make_pool(), model_impl="native")


@pytest.mark.parametrize("name", ["DebertaModel", "DebertaForSequenceClassification"])
def test_an_encoder_that_is_not_built_is_refused_with_the_nearest(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": "deberta"}))
    with pytest.raises(ConfigError, match=f"architecture {name} .*the nearest .* runs natively is DebertaV2Model"):
        ours(tmp_path)


def test_without_transformers_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    write_without_family(tmp_path, monkeypatch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ForCausalLM is not supported; .*pip install 'paged-serve\[hf\]'"):
        ours(tmp_path)
    with pytest.raises(ConfigError, match=r"transformers is not installed; pip install 'paged-serve\[hf\]'"):
        ours(tmp_path, model_impl="transformers")
    assert not choice.is_for_transformers(["Qwen3ForCausalLM"], ModelConfig())


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"hidden_size": 64},
            r"embed_tokens.weight has shape \[256, 128\], but config.json asks for \[256, 64\]",
        ),
        ({"num_hidden_layers": 4}, r"has no tensor model.layers.3\.\S+, which its config.json asks for"),
        ({"num_hidden_layers": 2}, "tensors that its config.json does not explain: model.layers.2"),
        ({"vocab_size": 300}, r"has shape \[256, 128\], but config.json asks for \[300, 128\]"),
        ({"num_attention_heads": 3}, "cannot be read by transformers|3 query and 2 KV heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be a number of at least 1"),
    ],
)
def test_a_config_that_contradicts_its_weights_is_refused(fields, reason, tmp_path, make_pool):
    write("Arcee", tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(ConfigError, match=reason):
        ours(tmp_path, pool=make_pool(), model_impl="transformers")


def test_weights_that_are_not_finite_are_named(tmp_path, make_pool):
    write("Arcee", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][5, 7] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"model.layers.1.mlp.up_proj.weight holds NaN or infinity"):
        ours(tmp_path, pool=make_pool(), model_impl="transformers")


def test_ranks_need_a_plan(tmp_path, make_pool):
    write("HunYuanDenseV1", tmp_path)
    pools = [make_pool(), make_pool()]

    def load(group):
        with pytest.raises(ConfigError, match=r"tensor_parallel_size=2 needs a plan \(base_model_tp_plan\)"):
            ours(tmp_path, pool=pools[group.rank], group=group, model_impl="transformers")

    on_ranks(2, tmp_path / "meet", load)


def test_code_of_a_folder_runs_only_when_it_is_trusted(tmp_path, make_pool):
    model, prompt = write_own(tmp_path, "x"), random_tokens(40)
    with pytest.raises(ConfigError, match=r"comes with the model \(modeling_own\S+\).*use --trust-remote-code"):
        ours(tmp_path, pool=make_pool())
    loop = PagedLoop(ours(tmp_path, pool=make_pool(), trust_remote_code=True))
    found, expected = loop.prefill(loop.row(prompt)), reference_logits(model, prompt)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("x - x.mean(dim=1, keepdim=True)", "computes torch.mean over more than the last dimension"),
        ("x @ torch.eye(x.shape[-1])", r"computes torch.matmul|computes torch.mm"),
        ("x * torch.nn.functional.silu(x[..., :1])", "computes torch.silu over 1 elements per row"),
        (
            "torch.cat([x[:, :1], x[:, :-1]], dim=1)",
            "a row of 7 tokens has different bits .* than alone, from posit",
        ),
    ],
)
def test_a_model_whose_rows_depend_on_each_other_is_refused(result, reason, tmp_path, make_pool):
    write_own(tmp_path, result)
    with pytest.raises(ConfigError, match=reason):
        ours(tmp_path, pool=make_pool(), trust_remote_code=True)


@pytest.mark.parametrize(
    ("compute", "is_allowed"),
    [
        (lambda x: x * x + x.neg().sqrt(), True),
        (torch.exp, True),
        (lambda x: torch.nn.functional.silu(x[..., :96].contiguous()), False),
        (torch.nn.functional.silu, True),  # 128 elements per row: whole vectors
        (lambda x: x.softmax(-1), True),
        (lambda x: x.softmax(1), False),
        (lambda x: x.cumsum(1), False),
        (lambda x: torch.add(x, x, alpha=2), True),
        (lambda x: x.transpose(1, 2).sum(-1), False),
    ],
)
def test_operations_of_torch_are_allowed_where_no_row_depends_on_another(compute, is_allowed):
    watch = RowWatch(31)
    with torch.inference_mode(), watch:
        compute(torch.randn(1, 31, 128, generator=torch.Generator().manual_seed(0)))
    assert bool(watch.problems) != is_allowed, list(watch.problems)
