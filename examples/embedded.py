"""A web application with the engine inside: one event loop for the routes and for AsyncLLM.

Run it:

    python examples/embedded.py              # sends itself one request and ends
    python examples/embedded.py 8080         # on port 8080: curl -N 'http://127.0.0.1:8080/complete?prompt=The%20sea'
"""

import asyncio
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from paged_serve import AsyncLLM, InvalidRequest, SamplingParams

llm = AsyncLLM()  # starts no process yet


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Start and end the engine with the application."""
    async with llm:
        yield


async def complete(request: Request) -> Response:
    """Stream the completion as it is generated. A client that disconnects aborts its request."""
    query = request.query_params
    try:
        params = SamplingParams(temperature=float(query.get("temperature", 0)), max_tokens=32)
        outputs = llm.generate(query.get("prompt", ""), params)
        first = await anext(outputs)  # here, because a status cannot be changed once a stream has begun
    except InvalidRequest as error:
        return JSONResponse({"error": error.message, "field": error.param}, 400)
    except ValueError as error:
        return JSONResponse({"error": str(error), "field": "temperature"}, 400)

    async def pieces() -> AsyncIterator[str]:
        sent = len(first.outputs[0].text)
        yield first.outputs[0].text
        async for output in outputs:
            text = output.outputs[0].text
            yield text[sent:]
            sent = len(text)

    return StreamingResponse(pieces(), media_type="text/plain")


app = Starlette(routes=[Route("/complete", complete)], lifespan=lifespan)


def ask(port: int, **query: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/complete?{urllib.parse.urlencode(query)}") as response:
        return response.read().decode()


async def send_itself_a_request() -> None:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.05)
    if server.started:
        port = server.servers[0].sockets[0].getsockname()[1]
        print(await asyncio.to_thread(ask, port, prompt="The capital of France is"))
        server.should_exit = True
    await serving


if __name__ == "__main__":
    if len(sys.argv) > 1:
        uvicorn.run(app, port=int(sys.argv[1]))
    else:
        asyncio.run(send_itself_a_request())
