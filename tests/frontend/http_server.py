"""The ASGI application over a fake engine, and a client for it in the same process."""

import asyncio
import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from paged_serve.frontend.adapters.folders import with_adapters
from paged_serve.frontend.admission import Admission
from paged_serve.frontend.conversation.template_process import Templates
from paged_serve.frontend.conversation.template_renderer import TemplateRenderer
from paged_serve.frontend.http.exchange.exchange import Exchange
from paged_serve.frontend.http.routes.router import make_routers
from paged_serve.frontend.http.server.app import Application
from paged_serve.frontend.http.service import Service, TextSide
from paged_serve.protocol.messages.config import CacheConfig, Config, LoraConfig, ModelConfig, ServerConfig
from paged_serve.protocol.messages.engine_core import Welcome

from .fake_engine import LIMITS, FakeEngine

TEMPLATE = (
    "{# calls are written as <tool_call> #}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }}{{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | map(attribute='function.name') | join(',') }}{% endif %}"
    "{% if shout %}!{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_model_folder(folder: Path) -> Path:
    """Make a model folder with a byte-level tokenizer of one token per byte, and a template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@functools.cache
def renderer_of(templates: bytes) -> TemplateRenderer:
    """One renderer for all servers with these templates: to start its process takes a fifth of a second."""
    return TemplateRenderer(msgspec.json.decode(templates, type=Templates))


@dataclass
class Server:
    """`text`: the output that the engine generates."""

    folder: Path
    text: str = "hello"
    options: dict[str, object] = field(default_factory=dict)
    cache: CacheConfig = field(default_factory=CacheConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    plugins: tuple[str, ...] = ()
    run_dir: str = ""
    ends: bool = True  # whether EOS follows the text; otherwise the output ends by length
    limits: Welcome = LIMITS
    is_replacement: bool = False  # of a process that ended

    def __post_init__(self) -> None:
        model = ModelConfig(model=str(self.folder), plugins=self.plugins)
        server = ServerConfig(**self.options)
        config = with_adapters(Config(model=model, cache=self.cache, server=server, lora=self.lora))
        text = TextSide.load(config, self.run_dir)
        if text.template is not None:
            text.template = renderer_of(msgspec.json.encode(text.template.templates))
        self.tokenizer = text.tokenizer
        eos = self.tokenizer.token_id("<|end|>") if self.ends else None
        self.engine = FakeEngine([self.tokenizer.encode(self.text)], eos, limits=self.limits)
        self.admission = Admission(max_active=8)
        self.app = Application(config.server, self.admission, lambda: self.engine.ready)
        self.app.router, self.admin = make_routers(
            Service.of(text, self.engine, self.admission, is_replacement=self.is_replacement)
        )

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client:
                content = body if isinstance(body, bytes) else None
                return await client.request(
                    method, path, content=content, json=None if content is not None else body, headers=headers
                )

        return asyncio.run(send())

    def metrics(self) -> str:
        return self.operators("GET", "/metrics")

    def operators(self, method: str, path: str) -> str:
        """The answer of an operator's route."""
        return asyncio.run(self.operators_answer(method, path)).decode()

    async def operators_answer(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Raises the error of a refusal."""
        sent: list[dict] = []

        async def receive() -> dict:
            return {"type": "http.request", "body": body}

        async def send(event: dict) -> None:
            sent.append(event)

        scope = {"type": "http", "method": method, "path": path, "headers": []}
        await self.admin.handle(Exchange(scope, receive, send))
        return b"".join(event.get("body", b"") for event in sent)

    def complete(self, **fields: object) -> dict:
        return self.good("/v1/completions", {"prompt": "abc", "max_tokens": 60} | fields)

    def chat(self, *, content: object = "hi", **fields: object) -> dict:
        return self.good("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]} | fields)

    def good(self, path: str, body: dict) -> dict:
        response = self.ask("POST", path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, body: dict) -> list[dict]:
        """The chunks of a stream, which must end as the protocol requires."""
        response = self.ask("POST", path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done, nothing = response.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(chunks: list[dict], index: int = 0) -> str:
    """The text of one choice of a streamed completion."""
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)
