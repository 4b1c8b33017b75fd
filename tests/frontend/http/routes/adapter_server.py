"""A server over a fake engine whose model has LoRA adapters, and their folders."""

from paged_serve.protocol.messages.config import LoraConfig

from ...adapter_folders import make_adapter_folder
from ...http_server import Server, make_model_folder


def models(tmp_path_factory):
    return make_model_folder(tmp_path_factory.mktemp("models") / "model")


def sql_folders(tmp_path):
    return make_adapter_folder(tmp_path / "sql")


def serving(model, *entries, server=None, **options):
    return Server(model, options=server or {}, lora=LoraConfig(adapters=entries, **options))
