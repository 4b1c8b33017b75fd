"""A program that forks: when its children end normally, its engine and client continue."""

import subprocess
import sys
from pathlib import Path

import pytest

from paged_serve.protocol.messages.sampling_params import FinishReason

from ..fake_core import PROMPT, expected, generate

ROOT = Path(__file__).parents[3]
NUM_TOKENS = 60
PLAIN = """
from paged_serve import Client, SamplingParams
client = Client.connect(sys.argv[1], timeout_s=60)
{within}
request = client.submit({prompt}, SamplingParams(max_tokens={num_tokens}))
delta = next(request)
tokens = list(delta.token_ids)
fork(lambda: (list(request) if {uses} else None))
for delta in request:
    tokens += delta.token_ids
print(tokens, delta.finish_reason.name)
"""
ASYNC = """
import asyncio, uvloop
from paged_serve import AsyncClient, SamplingParams
async def main():
    async with await AsyncClient.connect(sys.argv[1], timeout_s=60) as client:
        request = client.submit({prompt}, SamplingParams(max_tokens={num_tokens}))
        delta = await anext(request)
        tokens = list(delta.token_ids)
        fork(lambda: (client.submit([1], SamplingParams()).__anext__().send(None) if {uses} else None))
        async for delta in request:
            tokens += delta.token_ids
        print(tokens, delta.finish_reason.name)
with asyncio.Runner(loop_factory={loop}.new_event_loop) as runner:
    runner.run(main())
"""
FORK = """
import os, sys
def fork(use):
    child = os.fork()
    if child == 0:
        try:
            use()
        except Exception as error:
            print(type(error).__name__, error, file=sys.stderr)
        sys.exit(0)
    assert os.waitpid(child, 0)[0] == child
"""


def run(code: str, run_dir: str, **values: object) -> tuple[str, str]:
    """The output of the program, and the errors that its forked child prints."""
    code = FORK + code.format(prompt=list(PROMPT), num_tokens=NUM_TOKENS, **values)
    done = subprocess.run([sys.executable, "-c", code, run_dir], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


WHOLE = f"{expected(PROMPT, 0, NUM_TOKENS)} {FinishReason.LENGTH.name}\n"
surfaces = pytest.mark.parametrize(
    ("code", "values"),
    [
        (PLAIN, {"within": ""}),
        (PLAIN, {"within": "client.__enter__()"}),
        (ASYNC, {"loop": "asyncio"}),
        (ASYNC, {"loop": "uvloop"}),
    ],
    ids=["client", "client entered", "asyncio", "uvloop"],
)


@surfaces
def test_a_stream_continues_when_a_forked_child_ends(start_core, run_dir, code, values):
    start_core(script=generate(pause_s=0.002))
    assert run(code, run_dir, uses=False, **values)[0] == WHOLE


@surfaces
def test_use_in_a_forked_child_raises_an_error_and_leaves_the_parent_unaffected(start_core, run_dir, code, values):
    start_core(script=generate(pause_s=0.002))
    printed, error = run(code, run_dir, uses=True, **values)
    assert printed == WHOLE
    assert "which forked this one; connect another here" in error
