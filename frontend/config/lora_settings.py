"""Settings of LoRA adapters."""

from .setting import Setting

_GROUP = "LoRA adapters"

LORA_SETTINGS = (
    Setting(
        _GROUP,
        "lora.adapters",
        ("--lora", "--lora-modules"),
        "An adapter: its name in requests, and its PEFT folder; repeatable.",
        "NAME=PATH",
    ),
    Setting(
        _GROUP,
        "lora.max_loras",
        ("--max-loras",),
        "Most adapters in memory at once; default: 8 if an option enables adapters, else 0.",
        "N",
    ),
    Setting(
        _GROUP,
        "lora.enabled",
        ("--enable-lora",),
        "The same as --max-loras 8; other options that enable adapters imply it.",
    ),
    Setting(_GROUP, "lora.max_lora_rank", ("--max-lora-rank",), "Largest rank of an adapter.", "N"),
    Setting(
        _GROUP,
        "lora.allow_loading",
        ("--allow-lora-loading",),
        "Let clients load and unload adapters, from any folder that the server can read.",
    ),
)
