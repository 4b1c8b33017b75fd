"""The wall clock jumps by an hour, forward and back, at every call: no decision depends on it."""

import re
import signal

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")

JUMPING = """
import itertools, time

hours, real = itertools.cycle((3600, -3600)), time.time
time.time = lambda: real() + next(hours)
time.time_ns = lambda: int(1e9 * time.time())
"""


# With the core, its workers are replaced, too.
@pytest.mark.parametrize(
    "roles", [["engine-core"], pytest.param(["worker", "engine-core"], marks=pytest.mark.nightly)], ids=len
)
def test_a_server_whose_clock_jumps_serves_recovers_and_stops(roles, tmp_path_factory):
    folder, modules = tmp_path_factory.mktemp("t"), tmp_path_factory.mktemp("m")
    (modules / "sitecustomize.py").write_text(JUMPING)
    server = ServerProcess(folder, "--no-standby-workers", import_path=modules)
    try:
        server.wait_ready()
        undisturbed = server.complete(max_tokens=96, timeout=600)
        for role in roles:
            stream = server.stream(max_tokens=96, timeout=600)
            received = [next(stream)]
            server.children()[role].kill()
            assert "".join([*received, *stream]) == undisturbed
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        hours = {hour[1] for hour in re.finditer(r"^[0-9-]{10} ([0-9]{2}):", server.stderr(), re.MULTILINE)}
        assert len(hours) > 1, "the log's clock did not jump"
        assert server.stderr().count(" lost reason=") == len(roles), server.stderr()
    finally:
        server.close()
