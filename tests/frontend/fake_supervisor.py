"""A supervisor that starts no process: its engine is a FakeCore that follows a script."""

import json
import threading

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from paged_serve.protocol.transport.run_dir import make_run_dir, remove_run_dir

from .fake_core import FakeCore, generate


class FakeSupervisor:
    script = staticmethod(generate())
    limits: dict = {}  # noqa: RUF012
    made: "list[FakeSupervisor]" = []  # noqa: RUF012

    def __init__(self, config, http_socket=None):
        assert http_socket is None
        self.config, self.reason, self.exit_code = config, "", 0
        self._stop = threading.Event()
        self.made.append(self)

    def start(self):
        self.run_dir = make_run_dir()
        self.core = FakeCore(self.run_dir, script=self.script, **self.limits)

    def wait_ready(self, timeout_s, on_progress=None):
        return {}

    def run(self):
        self._stop.wait()
        self.core.kill()
        remove_run_dir(self.run_dir)
        return self.exit_code

    def stop(self):
        self._stop.set()


def write_model_of_numbers(folder):
    """A folder whose tokenizer maps numbers to ids: "5 6 7" is [5, 6, 7]."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({f"Ġ{i}": i for i in range(1000)}, unk_token="Ġ0"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.25, "top_k": 7, "max_new_tokens": 5, "eos_token_id": 2})
    )
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %} {{ m['content'] }}{% endfor %}{% if tools %} {{ tools | length }}{% endif %}"
        "{% if add_generation_prompt %} 7{% endif %}"
    )
    return str(folder)
