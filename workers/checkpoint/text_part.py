"""The text part of a model that also reads images or audio: its fields in config.json, and the names of its tensors."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file

LLAMA: Final = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
CROSS_ATTENTION: Final = {"cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}
# of text_config.model_type: the architecture, and what published files leave to the defaults of the format
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus1p5_text": (
        "Apertus1p5TextForCausalLM",
        LLAMA | {"vocab_size": 266752, "intermediate_size": 14336, "max_position_embeddings": 65536},
    ),
    "aria_text": (
        "AriaTextForCausalLM",
        LLAMA | {"intermediate_size": 4096, "max_position_embeddings": 2048},
    ),
    "cohere": ("CohereForCausalLM", {}),
    "cohere2": ("Cohere2ForCausalLM", {}),
    "cohere_compass_text": (
        "CohereCompassForCausalLM",
        {
            "vocab_size": 256000,
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "max_position_embeddings": 8192,
        },
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {}),
    "exaone4": ("Exaone4ForCausalLM", {}),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072},
    ),
    "gemma3n_text": ("Gemma3nForCausalLM", {}),
    "gemma4_text": ("Gemma4ForCausalLM", {}),
    "gemma4_unified_text": ("Gemma4ForCausalLM", {"hidden_size_per_layer_input": 0, "sliding_window": 1024}),
    "glm4v_moe_text": ("Glm4MoeForCausalLM", {"partial_rotary_factor": 0.5}),
    "glm4v_text": ("Glm4ForCausalLM", {}),
    "hyperclovax": ("HyperCLOVAXForCausalLM", {}),
    "kimi_k2": ("DeepseekV3ForCausalLM", {}),
    "lfm2": ("Lfm2ForCausalLM", {}),
    "lfm3": ("Lfm3ForCausalLM", {}),
    "llama": ("LlamaForCausalLM", LLAMA | {"intermediate_size": 11008, "max_position_embeddings": 2048}),
    "llama4_text": ("Llama4ForCausalLM", {}),
    "ministral3": ("Ministral3ForCausalLM", {}),
    "mistral": (
        "MistralForCausalLM",
        LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
    ),
    "mistral4": (
        "Mistral4ForCausalLM",
        {
            "vocab_size": 131072,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "max_position_embeddings": 1048576,
        },
    ),
    "mllama_text_model": ("MllamaForCausalLM", CROSS_ATTENTION),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2_5_omni_text": ("Qwen2ForCausalLM", {}),
    "qwen2_5_vl_text": ("Qwen2ForCausalLM", {}),
    "qwen2_vl_text": ("Qwen2ForCausalLM", {}),
    "qwen3_5_moe_text": ("Qwen3_5MoeForCausalLM", {}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {}),
    "qwen3_omni_moe_text": ("Qwen3MoeForCausalLM", {}),
    "qwen3_vl_moe_text": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True}),
    "qwen3_vl_text": ("Qwen3ForCausalLM", {}),
}
# the whole model's architecture: the text_config.model_type that it has unless config.json says so
WHOLE_MODELS: dict[str, str] = {
    "Apertus1p5ForConditionalGeneration": "apertus1p5_text",
    "AriaForConditionalGeneration": "aria_text",
    "AyaVisionForConditionalGeneration": "cohere2",
    "Cohere2VisionForConditionalGeneration": "cohere2",
    "CohereCompassForConditionalGeneration": "cohere_compass_text",
    "DeepseekVLForConditionalGeneration": "llama",
    "Exaone4_5_ForConditionalGeneration": "exaone4",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma3nForConditionalGeneration": "gemma3n_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Gemma4UnifiedForConditionalGeneration": "gemma4_unified_text",
    "Glm46VForConditionalGeneration": "glm4v_text",
    "Glm4vForConditionalGeneration": "glm4v_text",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe_text",
    "HyperCLOVAXVisionV2ForConditionalGeneration": "hyperclovax",
    "Idefics2ForConditionalGeneration": "mistral",
    "Idefics3ForConditionalGeneration": "llama",
    "InternVLForConditionalGeneration": "qwen2",
    "JanusForConditionalGeneration": "llama",
    "KimiK25ForConditionalGeneration": "kimi_k2",
    "Kimi_K25ForConditionalGeneration": "kimi_k2",
    "Lfm2VlForConditionalGeneration": "lfm2",
    "Lfm3VlForConditionalGeneration": "lfm3",
    "Llama4ForConditionalGeneration": "llama4_text",
    "LlavaForConditionalGeneration": "llama",
    "LlavaNextForConditionalGeneration": "llama",
    "LlavaNextVideoForConditionalGeneration": "llama",
    "LlavaOnevisionForConditionalGeneration": "qwen2",
    "MiniCPMV4_6ForConditionalGeneration": "qwen3_5_text",
    "MiniCPMV4_7ForConditionalGeneration": "qwen3_5_text",
    "Mistral3ForConditionalGeneration": "mistral",
    "MllamaForConditionalGeneration": "mllama_text_model",
    "Ovis2ForConditionalGeneration": "qwen2",
    "Qwen2AudioForConditionalGeneration": "qwen2",
    "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
    "Qwen2_5OmniForConditionalGeneration": "qwen2_5_omni_text",
    "Qwen2_5OmniModel": "qwen2_5_omni_text",
    "Qwen2_5OmniThinkerForConditionalGeneration": "qwen2_5_omni_text",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl_text",
    "Qwen3_5ForConditionalGeneration": "qwen3_5_text",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe_text",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_omni_moe_text",
    "Qwen3OmniMoeThinkerForConditionalGeneration": "qwen3_omni_moe_text",
    "Qwen3VLForConditionalGeneration": "qwen3_vl_text",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe_text",
    "SmolVLMForConditionalGeneration": "llama",
    "VideoLlama3ForConditionalGeneration": "qwen2",
    "VideoLlavaForConditionalGeneration": "llama",
    "VipLlavaForConditionalGeneration": "llama",
    "VoxtralForConditionalGeneration": "llama",
}
# Fields that count in the whole model's: text_config often has only the defaults of the format.
OF_WHOLE: Final = ("tie_word_embeddings", "eos_token_id", "dtype", "torch_dtype", "quantization_config")
USUAL: Final = "model."  # begins the names of a decoder's tensors
HEAD: Final = "lm_head."
# what they begin with in a whole model, and the beginning of the output head's tensors
BEGINNINGS: Final = (
    ("language_model.model.", "language_model.lm_head."),
    ("model.language_model.", HEAD),
    ("model.text_model.", HEAD),
    ("thinker.model.", "thinker.lm_head."),
)
BESIDE: Final = "mtp."  # layers for multi-token prediction, which are not inside


def read_fields(folder: Path) -> dict[str, Any]:
    """The fields of config.json, or of a model with other parts those of its text part. Raises ConfigError."""
    fields = read_json_file(folder / "config.json", dict[str, Any])
    if not (whole := _whole_model(fields)):
        return fields
    thinker = fields.get("thinker_config")  # of models that also speak: what reads and writes
    return _text_fields(folder / "config.json", whole, fields | thinker if isinstance(thinker, dict) else fields)


def has_other_parts(folder: Path) -> bool:
    """Whether the model in `folder` also reads images or audio. Raises ConfigError."""
    return bool(_whole_model(read_json_file(folder / "config.json", dict[str, Any])))


def beginnings_in(folder: Path, tensors: Collection[str]) -> tuple[str, ...]:
    """What the names of the text part's tensors begin with; empty if the folder's model has no other parts."""
    return (*_beginnings(tensors), BESIDE) if has_other_parts(folder) else ()


def names_in(tensors: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Which beginnings of a decoder's names have others in `tensors`, and those."""
    return tuple(zip((USUAL, HEAD), _beginnings(tensors), strict=True))


def stored_name(name: str, tensors: Collection[str]) -> str:
    """The name in `tensors` of a tensor, or its beginning, that has `name` in a decoder of its own."""
    found = (own + name.removeprefix(usual) for usual, own in names_in(tensors) if name.startswith(usual))
    return next(found, name)


def decoder_name(name: str) -> str:
    """The name of a text part's tensor or module in a decoder of its own."""
    for begun in BEGINNINGS:
        for usual, own in zip((USUAL, HEAD), begun, strict=True):
            if name.startswith(own):
                return usual + name.removeprefix(own)
    return name


def module_names(module: str) -> tuple[str, ...]:
    """The names of a text part's module in any release, `module` first. That of a decoder's layer has only its own."""
    usual, own = f"{module}.", decoder_name(f"{module}.")
    is_head = own.startswith(HEAD)
    if own == usual and not is_head:
        return (module,)
    others = (begun[is_head] + own.removeprefix(HEAD if is_head else USUAL) for begun in BEGINNINGS)
    return tuple(dict.fromkeys((module, *(name.removesuffix(".") for name in others))))


def is_of_text(module: str, fields: dict[str, Any]) -> bool:
    """Whether a module of a model with other parts is in its text part; `fields`: those of `read_fields`."""
    name, images = decoder_name(module), fields.get("cross_attention_layers")
    crossing = tuple(f"{USUAL}layers.{layer}." for layer in images) if isinstance(images, list) else ()
    is_inside = name.startswith((f"{USUAL}layers.", f"{USUAL}embed_tokens", HEAD.removesuffix(".")))
    return is_inside and not name.startswith(crossing)


def _beginnings(tensors: Collection[str]) -> tuple[str, str]:
    embeddings = ((begun, f"{begun[0]}embed_tokens.weight") for begun in BEGINNINGS)
    return next((begun for begun, embedding in embeddings if embedding in tensors), (USUAL, HEAD))


def _text_fields(path: Path, whole: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the text part of the model `whole`, with those of the other parts in `fields`."""
    text = fields.get("text_config")
    if text is None:  # files of Qwen2-VL have the fields of its text beside those of its other parts
        text = fields | {"model_type": WHOLE_MODELS[whole]}
    if not isinstance(text, dict):
        raise ConfigError(f"{path}: text_config={text!r} must be an object")
    kind = text.get("model_type") or WHOLE_MODELS[whole]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(
            f"{path}: text_config.model_type={kind!r} is not supported in {whole}; supported: {', '.join(KINDS)}"
        )
    architecture, defaults = KINDS[kind]
    of_whole = {name: fields[name] for name in OF_WHOLE if fields.get(name) is not None}
    return defaults | text | of_whole | {"architectures": [architecture]}


def _whole_model(fields: dict[str, Any]) -> str:
    """The architecture of the whole, if it has a text part that can be served alone; otherwise ""."""
    names = fields.get("architectures")
    known = (
        (name for name in names if isinstance(name, str) and name in WHOLE_MODELS) if isinstance(names, list) else ()
    )
    return next(iter(known), "")
