"""Settings of LoRA adapters."""

from .setting import Setting, in_group

LORA_SETTINGS = in_group(
    "LoRA adapters",
    Setting(
        "lora.adapters",
        "An adapter: its name in requests, and its PEFT folder; repeatable.",
        "NAME=PATH",
        flags=("--lora", "--lora-modules"),
    ),
    Setting(
        "lora.max_loras",
        "Most adapters in memory at once; default: 8 if an option enables adapters, else 0.",
        "N",
    ),
    Setting(
        "lora.enabled",
        "The same as --max-loras 8; other options that enable adapters imply it.",
        flags=("--enable-lora",),
    ),
    Setting("lora.max_lora_rank", "Largest rank of an adapter.", "N"),
    Setting(
        "lora.allow_loading",
        "Let clients load and unload adapters, from any folder that the server can read.",
        flags=("--allow-lora-loading",),
    ),
)
