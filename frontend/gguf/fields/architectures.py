"""The GGUF architectures that are supported, each with its name and its fields in config.json."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..model import GgufModel
from .families import dense, encoders, expert_families, experts, gemma, latent, recurrent, windowed_experts
from .families.dense import nothing_more

Heads = Literal["usual", "latent", "of_some_layers", "of_layers", "of_kinds", "none"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One GGUF architecture."""

    name: str  # in config.json
    model_type: str
    more: Callable[[GgufModel, int], dict[str, Any]] = nothing_more  # (model, head_dim) -> its own fields
    epsilon: str = "rms_norm_eps"
    is_partial: bool = False  # heads may be partially rotated
    heads: Heads = "usual"
    has_experts: bool = False
    predicts_further: bool = False  # files may have layers for multi-token prediction


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", dense.llama),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen2vl": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen3vl": Architecture("Qwen3ForCausalLM", "qwen3"),
    "gemma": Architecture("GemmaForCausalLM", "gemma", gemma.gemma),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", gemma.gemma2),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", gemma.gemma3),
    "gemma3n": Architecture("Gemma3nForCausalLM", "gemma3n_text", gemma.gemma3n),
    "gemma-embedding": Architecture("Gemma3TextModel", "gemma3_text", gemma.gemma_embedding),
    "gemma4": Architecture("Gemma4ForCausalLM", "gemma4_text", gemma.gemma4, heads="of_kinds", has_experts=True),
    "phi2": Architecture("PhiForCausalLM", "phi", dense.phi2, epsilon="layer_norm_eps", is_partial=True),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", dense.phi3, is_partial=True),
    "glm4": Architecture("Glm4ForCausalLM", "glm4", dense.glm4, is_partial=True),
    "chatglm": Architecture("GlmForCausalLM", "glm", dense.glm, is_partial=True),
    "deci": Architecture("DeciLMForCausalLM", "nemotron-nas", dense.deci, heads="of_kinds"),
    "granite": Architecture("GraniteForCausalLM", "granite", dense.granite),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", dense.smollm3),
    "olmo": Architecture("OlmoForCausalLM", "olmo", dense.olmo),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2"),
    "exaone": Architecture("ExaoneForCausalLM", "exaone", epsilon="layer_norm_epsilon"),
    "exaone4": Architecture("Exaone4ForCausalLM", "exaone4", dense.exaone4),
    "command-r": Architecture("CohereForCausalLM", "cohere", dense.cohere, epsilon="layer_norm_eps"),
    "cohere2": Architecture("Cohere2ForCausalLM", "cohere2", dense.cohere2, epsilon="layer_norm_eps"),
    "mistral3": Architecture("Ministral3ForCausalLM", "ministral3", dense.mistral3),
    "seed_oss": Architecture("SeedOssForCausalLM", "seed_oss", dense.seed_oss),
    "minicpm": Architecture("MiniCPMForCausalLM", "minicpm", dense.minicpm),
    "internlm2": Architecture("InternLM2ForCausalLM", "internlm2"),
    "starcoder2": Architecture("Starcoder2ForCausalLM", "starcoder2", dense.starcoder2, epsilon="norm_epsilon"),
    "stablelm": Architecture(
        "StableLmForCausalLM", "stablelm", dense.stablelm, epsilon="layer_norm_eps", is_partial=True
    ),
    "nemotron": Architecture("NemotronForCausalLM", "nemotron", dense.nemotron, epsilon="norm_eps", is_partial=True),
    "apertus": Architecture("ApertusForCausalLM", "apertus", dense.apertus),
    "arcee": Architecture("ArceeForCausalLM", "arcee", dense.arcee),
    "falcon": Architecture("FalconForCausalLM", "falcon", dense.falcon, epsilon="layer_norm_epsilon"),
    "gpt2": Architecture("GPT2LMHeadModel", "gpt2", dense.gpt2, epsilon="layer_norm_epsilon"),
    "starcoder": Architecture("GPTBigCodeForCausalLM", "gpt_bigcode", dense.starcoder, epsilon="layer_norm_epsilon"),
    "gptneox": Architecture("GPTNeoXForCausalLM", "gpt_neox", dense.gptneox, epsilon="layer_norm_eps", is_partial=True),
    "jais2": Architecture("Jais2ForCausalLM", "jais2", dense.llama, epsilon="layer_norm_eps"),
    "mpt": Architecture("MptForCausalLM", "mpt", dense.mpt, epsilon="layer_norm_epsilon"),
    "bloom": Architecture("BloomForCausalLM", "bloom", epsilon="layer_norm_epsilon"),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", "qwen2_moe", experts.qwen2_moe, has_experts=True),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", experts.qwen3_moe, has_experts=True),
    "qwen3vlmoe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", experts.qwen3_moe, has_experts=True),
    "olmoe": Architecture("OlmoeForCausalLM", "olmoe", experts.olmoe, has_experts=True),
    "gpt-oss": Architecture("GptOssForCausalLM", "gpt_oss", experts.gpt_oss, has_experts=True),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM", "glm4_moe", latent.glm4_moe, is_partial=True, has_experts=True, predicts_further=True
    ),
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        latent.deepseek2,
        heads="latent",
        has_experts=True,
        predicts_further=True,
    ),
    "deepseek32": Architecture(
        "DeepseekV32ForCausalLM",
        "deepseek_v32",
        latent.deepseek32,
        heads="latent",
        has_experts=True,
        predicts_further=True,
    ),
    "glm-dsa": Architecture(
        "GlmMoeDsaForCausalLM",
        "glm_moe_dsa",
        latent.glm_dsa,
        heads="latent",
        has_experts=True,
        predicts_further=True,
    ),
    "mistral4": Architecture("Mistral4ForCausalLM", "mistral4", latent.mistral4, heads="latent", has_experts=True),
    "kimi-linear": Architecture(
        "KimiLinearForCausalLM", "kimi_linear", latent.kimi_linear, heads="latent", has_experts=True
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM", "qwen3_5_text", recurrent.qwen35, is_partial=True, predicts_further=True
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        recurrent.qwen_moe,
        is_partial=True,
        has_experts=True,
        predicts_further=True,
    ),
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        recurrent.qwen_moe,
        is_partial=True,
        has_experts=True,
        predicts_further=True,
    ),
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM", "minimax_m2", expert_families.minimax_m2, is_partial=True, has_experts=True
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", "ernie4_5", expert_families.ernie4_5),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", expert_families.ernie4_5_moe, has_experts=True
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", expert_families.hunyuan),
    "hunyuan-moe": Architecture(
        "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", expert_families.hunyuan_moe, has_experts=True
    ),
    "llama4": Architecture("Llama4ForCausalLM", "llama4_text", expert_families.llama4, has_experts=True),
    "cohere2moe": Architecture(
        "Cohere2MoeForCausalLM",
        "cohere2_moe",
        expert_families.cohere2_moe,
        epsilon="layer_norm_eps",
        has_experts=True,
    ),
    "dots1": Architecture("Dots1ForCausalLM", "dots1", expert_families.dots1, has_experts=True),
    "bailingmoe": Architecture("BailingMoeForCausalLM", "bailing_moe", expert_families.bailing_moe, has_experts=True),
    "bailingmoe2": Architecture(
        "BailingMoeV2ForCausalLM",
        "bailing_moe_v2",
        expert_families.bailing_moe2,
        is_partial=True,
        has_experts=True,
        predicts_further=True,
    ),
    "deepseek": Architecture("DeepseekForCausalLM", "deepseek", expert_families.deepseek, has_experts=True),
    "afmoe": Architecture("AfmoeForCausalLM", "afmoe", expert_families.afmoe, has_experts=True),
    "exaone-moe": Architecture(
        "ExaoneMoeForCausalLM", "exaone_moe", expert_families.exaone_moe, has_experts=True, predicts_further=True
    ),
    "phimoe": Architecture(
        "PhimoeForCausalLM", "phimoe", expert_families.phimoe, epsilon="rms_norm_eps", has_experts=True
    ),
    "hy_v3": Architecture("HYV3ForCausalLM", "hy_v3", windowed_experts.hy_v3, has_experts=True, predicts_further=True),
    "laguna": Architecture(
        "LagunaForCausalLM", "laguna", windowed_experts.laguna, is_partial=True, heads="of_layers", has_experts=True
    ),
    "mellum": Architecture("MellumForCausalLM", "mellum", windowed_experts.mellum, has_experts=True),
    "mimo2": Architecture(
        "MiMoV2FlashForCausalLM",
        "mimo_v2_flash",
        windowed_experts.mimo2,
        heads="of_kinds",
        has_experts=True,
        predicts_further=True,
    ),
    "granite_swa": Architecture("GraniteSWAForCausalLM", "granite_swa", windowed_experts.granite_swa, has_experts=True),
    "minimax-01": Architecture(
        "MiniMaxForCausalLM", "minimax", recurrent.minimax_01, is_partial=True, has_experts=True
    ),
    "bailingmoe3": Architecture(
        "BailingHybridForCausalLM",
        "bailing_hybrid",
        latent.bailing_moe3,
        heads="latent",
        has_experts=True,
        predicts_further=True,
    ),
    "minicpm3": Architecture("MiniCPM3ForCausalLM", "minicpm3", latent.minicpm3, heads="latent"),
    "nemotron_h": Architecture(
        "NemotronHForCausalLM", "nemotron_h", recurrent.nemotron_h, epsilon="layer_norm_epsilon", heads="of_kinds"
    ),
    "nemotron_h_moe": Architecture(
        "NemotronHForCausalLM",
        "nemotron_h",
        recurrent.nemotron_h,
        epsilon="layer_norm_epsilon",
        heads="of_kinds",
        has_experts=True,
        predicts_further=True,
    ),
    "lfm2": Architecture("Lfm2ForCausalLM", "lfm2", recurrent.lfm2, epsilon="norm_eps", heads="of_some_layers"),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        recurrent.lfm2_moe,
        epsilon="norm_eps",
        heads="of_some_layers",
        has_experts=True,
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        recurrent.granite_hybrid,
        heads="of_some_layers",
        has_experts=True,
    ),
    "falcon-h1": Architecture("FalconH1ForCausalLM", "falcon_h1", recurrent.falcon_h1),
    "jamba": Architecture("JambaForCausalLM", "jamba", recurrent.jamba, heads="of_some_layers", has_experts=True),
    "mamba": Architecture("MambaForCausalLM", "mamba", recurrent.mamba, epsilon="layer_norm_epsilon", heads="none"),
    "mamba2": Architecture("Mamba2ForCausalLM", "mamba2", recurrent.mamba2, epsilon="layer_norm_epsilon", heads="none"),
    "bert": Architecture("BertModel", "bert", encoders.bert, epsilon="layer_norm_eps"),
    "nomic-bert": Architecture("NomicBertModel", "nomic_bert", encoders.nomic_bert, epsilon="layer_norm_eps"),
    "modern-bert": Architecture("ModernBertModel", "modernbert", encoders.modern_bert, epsilon="norm_eps"),
    "eurobert": Architecture("EuroBertModel", "eurobert", encoders.eurobert),
    "dbrx": Architecture("DbrxForCausalLM", "dbrx", experts.dbrx, epsilon="layer_norm_epsilon", has_experts=True),
    "granitemoe": Architecture("GraniteMoeForCausalLM", "granitemoe", experts.granitemoe, has_experts=True),
}
# A file's metadata tells these from others of its architecture.
MIXTRAL = Architecture("MixtralForCausalLM", "mixtral", experts.mixtral, has_experts=True)  # llama with experts
OLMO3 = Architecture("Olmo3ForCausalLM", "olmo3", dense.olmo3)  # olmo2 with windows
BERT_CLASSIFIER = Architecture(
    "XLMRobertaForSequenceClassification", "xlm-roberta", encoders.bert_classifier, epsilon="layer_norm_eps"
)
VISION = ("clip", "mmproj")


def supported(model: GgufModel) -> Architecture:
    """The model's architecture. Raises ConfigError for one that is not supported."""
    name = model.architecture
    if name in VISION:
        raise model.refused("it is the vision or audio part of a model (mmproj); give the file of the language model")
    if (found := ARCHITECTURES.get(name)) is None:
        raise model.refused(f"the GGUF architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if (count := model.whole("expert_count", 0)) and not found.has_experts:
        if name != "llama":
            raise model.refused(f"it is a mixture of {count} experts, which is not supported for {name}")
        return MIXTRAL
    if name == "olmo2" and model.whole("attention.sliding_window", 0):
        return OLMO3
    if name == "bert" and encoders.scores_labels(model):
        return BERT_CLASSIFIER
    return found
