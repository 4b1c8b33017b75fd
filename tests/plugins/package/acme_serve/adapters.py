"""A LoRA resolver: the model name acme:PATH is the adapter in the folder PATH."""


def folder_of(name: str) -> str | None:
    return name.removeprefix("acme:") if name.startswith("acme:") else None
