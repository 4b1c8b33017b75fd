"""A program with an engine that forks: the engine ends with the program, not with its children."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..server_process import is_alive

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")
PROGRAM = """
import os, sys, time
from paged_serve import LLM, SamplingParams
from paged_serve.protocol.errors import EngineDead

def say(llm):
    [output] = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    return output.outputs[0].token_ids

def forked(action):
    child = os.fork()
    if child == 0:
        action()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def use(llm):
    try:
        say(llm)
    except EngineDead as error:
        sys.exit(7 if "which forked this one" in str(error) else 8)

with LLM(num_blocks=64, threads=1) as llm:
    before = say(llm)
    codes = [forked(lambda: None), forked(llm.close), forked(lambda: use(llm))]
    assert codes == [0, 0, 7], codes
    assert say(llm) == before
    if os.fork() == 0:
        time.sleep(600)
    print(llm._engine.supervisor.run_dir, flush=True)
    time.sleep(600)
"""


def test_an_engine_survives_forks_of_its_program_and_ends_with_the_program(tmp_path_factory):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("t"))},
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = []
    try:
        assert Path(process.stdout.readline().strip()).is_dir()
        processes = psutil.Process(process.pid).children(recursive=True)
        fork = next(child for child in processes if "-c" in child.cmdline())
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while any(is_alive(child) for child in processes if child != fork):
            assert time.monotonic() < deadline, processes
            time.sleep(0.01)
        assert is_alive(fork)
    finally:
        for child in filter(is_alive, processes):
            os.kill(child.pid, signal.SIGKILL)
        process.kill()
        process.communicate()
