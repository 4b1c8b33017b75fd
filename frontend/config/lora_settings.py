"""Settings of LoRA adapters."""

from .setting import Setting

_GROUP = "LoRA adapters"

LORA_SETTINGS = (
    Setting(
        _GROUP,
        "lora.adapters",
        ("--lora", "--lora-modules"),
        "An adapter, as a name for requests and its PEFT folder; repeatable.",
        "NAME=PATH",
    ),
    Setting(
        _GROUP,
        "lora.max_loras",
        ("--max-loras",),
        "Adapters in memory at once; default: 8 if there can be any, else 0.",
        "N",
    ),
    Setting(_GROUP, "lora.enabled", ("--enable-lora",), "The same as --max-loras 8; --lora and others imply it."),
    Setting(_GROUP, "lora.max_lora_rank", ("--max-lora-rank",), "Largest rank of an adapter.", "N"),
    Setting(
        _GROUP,
        "lora.allow_loading",
        ("--allow-lora-loading",),
        "Clients may load and unload adapters: any folder that the server can read.",
    ),
)
