"""A KV tier on disk, in real processes: restarts, kills, damaged files, and the same bytes throughout."""

import contextlib
import os
import random
import re
import threading
import time
from pathlib import Path

import psutil
import pytest

from paged_serve import LLM, SamplingParams
from paged_serve.frontend.config.model_folder import demo_model_folder

from ..serving import serving

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

STORY = "Once upon a time a little fox lived in a deep forest near a quiet lake. " * 12
WORKER, CORE = "paged_serve.workers.process", "paged_serve.engine_core.process"
WITHIN_S = 120
NUM_KILLS = 20


def complete(server, text, max_tokens=24):
    """The answer, and how many tokens of the prompt were cached."""
    body = {"prompt": text, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    usage = answer["usage"]
    return answer["choices"][0]["text"], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def metric(server, name):
    return float(re.search(rf"^paged:kv_tier_{name}{{.*}} (.+)$", server.metrics(), re.M)[1])


def stored(folder):
    """Whole files of blocks, by the folder of their rank."""
    return [path for path in folder.glob("*/*") if len(path.name) == 68]


def wait_for_blocks(folder, count):
    deadline = time.monotonic() + WITHIN_S
    while len(stored(folder)) < count:
        assert time.monotonic() < deadline, f"{len(stored(folder))} of {count} blocks were stored"
        time.sleep(0.05)


def flip_a_bit(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.timeout(600)
def test_a_restarted_server_starts_from_the_tier_and_computes_what_is_damaged_with_the_same_bytes(ranks, tmp_path):
    """The files change while a server runs, which finds them again with its new workers, or its new core."""
    options = "--kv-tier-dir", str(tmp_path), "--tp", str(ranks)
    with serving(*options) as server:
        answer, cached, num_tokens = complete(server, STORY)
        assert cached == 0
        wait_for_blocks(tmp_path, ranks * (num_tokens // 16))
    with serving(*options) as server:
        again, cached, _ = complete(server, STORY)
        assert again == answer
        assert cached >= num_tokens - 32
        assert metric(server, "loaded_blocks_total") == cached // 16
        assert metric(server, "loaded_bytes_total") < metric(server, "used_bytes")
        for module in (WORKER, CORE):
            check_damage(server, module, tmp_path, ranks * (num_tokens // 16), answer)


def check_damage(server, module, folder, num_files, answer):
    """Check that a process that replaces another computes the older half of the blocks, which is damaged meanwhile."""
    wait_for_blocks(folder, num_files)
    before = server.output().count("damaged block")
    for path in sorted(stored(folder), key=lambda path: path.stat().st_mtime_ns)[: num_files // 2]:
        flip_a_bit(path)
    server.children(module)[0].kill()
    again, cached, num_tokens = complete(server, STORY)
    assert again == answer
    assert cached < num_tokens - 32, "a damaged block was used"
    assert server.output().count("damaged block") > before, "the damage was not found"
    assert metric(server, "failed_blocks_total") > 0


# In the fast tests, tests/workers/tier/test_tier.py has both.
@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_restarted_server_uses_neither_damaged_blocks_nor_those_of_another_configuration(ranks, tmp_path):
    options = "--kv-tier-dir", str(tmp_path), "--tp", str(ranks)
    with serving(*options) as server:
        answer, _, num_tokens = complete(server, STORY)
        wait_for_blocks(tmp_path, ranks * (num_tokens // 16))
        for module in (WORKER, CORE):
            server.children(module)[0].kill()
            assert complete(server, STORY)[0] == answer
    for path in stored(tmp_path):
        flip_a_bit(path)
    for more, why in (((), "a damaged block"), (("--block-size", "32"), "a block of another configuration")):
        with serving(*options, *more) as server:
            again, cached, _ = complete(server, STORY)
            assert again == answer
            assert cached == 0, f"{why} was used"


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(1200)
def test_kills_and_damage_while_blocks_are_stored_and_loaded_change_no_byte(ranks, tmp_path):
    """The cache holds two of six prompts, so each one evicts others, which come back from the tier."""
    texts = [f"Story {number}: {STORY}" for number in range(6)]
    rng = random.Random(ranks)
    options = "--kv-tier-dir", str(tmp_path), "--tp", str(ranks), "--max-restarts", "1000"
    with serving(*options, "--num-blocks", "64", "--max-model-len", "640") as server:
        expected = {text: complete(server, text)[0] for text in texts}
        answered, ends, killed = threading.Event(), threading.Event(), []

        def kill() -> None:
            """Each kill is beside the request after an answer, so that all workers are ready for some time."""
            for _ in range(NUM_KILLS):
                answered.clear()
                answered.wait()
                if ends.wait(rng.uniform(0.0, 0.3)):
                    return
                for path in rng.sample(files := stored(tmp_path), min(3, len(files))):
                    with contextlib.suppress(FileNotFoundError):  # a rank has just removed it
                        flip_a_bit(path)
                module = rng.choice((WORKER, CORE))
                killed.append(rng.choice(server.children(module)))
                killed[-1].kill()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            num_cached = 0
            while killer.is_alive():
                text = rng.choice(texts)
                answer, cached, _ = complete(server, text)
                assert answer == expected[text]
                num_cached += cached
                answered.set()
        finally:
            ends.set()
            answered.set()
            killer.join()
        assert len(killed) == NUM_KILLS
        assert num_cached > 0
        assert "damaged block" in server.output()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_programs_that_embed_a_model_find_the_blocks_of_the_one_before(tmp_path):
    answers, cached = [], []
    for _ in range(2):
        with LLM(kv_tier_dir=str(tmp_path), kv_tier_bytes=1 << 30) as llm:
            [output] = llm.generate([STORY], SamplingParams(max_tokens=16, temperature=0))
            answers.append(output.outputs[0].token_ids)
            cached.append(output.num_cached_tokens)
            wait_for_blocks(tmp_path, len(output.prompt_token_ids) // 16)
    assert answers[0] == answers[1]
    assert cached[0] == 0 < cached[1]


@pytest.mark.nightly
def test_an_unusable_folder_stops_nothing(tmp_path):
    (tmp_path / "file").touch()
    with serving("--kv-tier-dir", str(tmp_path / "file")) as server:
        assert complete(server, STORY)[0] == complete(server, STORY)[0]
        assert "there is no usable KV tier" in server.output()


def in_memory():
    """The folders in memory of this user's servers."""
    return list(Path("/dev/shm").glob(f"paged-serve-{os.getuid()}/run-*"))


# With the core, its workers are replaced, too.
@pytest.mark.parametrize("modules", [(CORE,), pytest.param((WORKER, CORE), marks=pytest.mark.nightly)], ids=len)
def test_the_tier_in_memory_survives_workers_and_cores_and_ends_with_the_server(modules, short_folder, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(short_folder))  # servers of other tests do not look there for what to free
    options = "--kv-tier-host-bytes", "1G"
    with serving(*options) as server:
        answer, _, num_tokens = complete(server, STORY)
        [folder] = [folder for folder in in_memory() if folder.name == Path(server.run_dir).name]
        wait_for_blocks(folder, num_tokens // 16)
        for module in modules:
            server.children(module)[0].kill()
            again, cached, _ = complete(server, STORY)
            assert again == answer
            assert cached >= num_tokens - 32
            assert metric(server, "loaded_blocks_total") == cached // 16
        children = server.children()
        server.kill()
        psutil.wait_procs(children, WITHIN_S)
        assert folder.exists()
        with serving(*options) as later:
            assert complete(later, STORY)[:2] == (answer, 0)
            assert not folder.exists(), "a killed server's memory is never freed"
            [folder] = [folder for folder in in_memory() if folder.name == Path(later.run_dir).name]
            assert later.stop() == 0
            assert not folder.exists(), "the server stopped and left its memory"
