"""Servers over a fake engine that store responses in one folder, and a client for them."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import msgspec
from openai.types.responses import Response

from paged_serve.frontend.http.exchange.auth import tenants_of
from paged_serve.protocol.messages.config import LoraConfig, ServerConfig

from ...http_server import Server, make_model_folder
from .response_server import OUTPUT, PATH, TEMPLATE, event_form

BEHIND = {"background": True}


def stored_servers(tmp_path):
    """A function that starts servers of one folder: each is another process of the same server."""
    (tmp_path / "t.jinja").write_text(TEMPLATE)

    def start(output: str = OUTPUT, lora: LoraConfig | None = None, is_replacement: bool = False, **options) -> Server:
        folder = make_model_folder(tmp_path / "model")
        named = {"chat_template": str(tmp_path / "t.jinja"), "store_responses": str(tmp_path / "stored"), **options}
        server = Server(folder, output, named, lora=lora or LoraConfig(), is_replacement=is_replacement)
        server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=2048)
        return server

    return start


async def resume(server: Server, *, predecessor_failed: bool = False) -> bool:
    """Resume the responses that an earlier process left unfinished, as each process does at its start."""
    tenants = tenants_of(ServerConfig(**server.options))
    return await server.app.router.resume_responses(tenants, predecessor_failed=predecessor_failed)


@asynccontextmanager
async def client_of(server: Server, key: str = "", *, has_resumed: bool = True):
    if has_resumed:
        await resume(server)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, trust_env=False
    ) as client:
        yield client


async def created(client: httpx.AsyncClient, given: object = "hi", **fields) -> dict:
    answer = await client.post(PATH, json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


async def ended(client: httpx.AsyncClient, answer_id: str) -> dict:
    async with asyncio.timeout(10):
        while (answer := (await client.get(f"{PATH}/{answer_id}")).json())["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0)
    Response.model_validate(answer, strict=True)
    return answer


def events_of(text: str) -> list[dict]:
    found = [json.loads(frame.split("data: ", 1)[1]) for frame in text.split("\n\n")[:-1]]
    for event in found:
        event_form().validate_python(event)
    return found
