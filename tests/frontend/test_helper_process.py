"""The link to a helper process that lacks processor time."""

import msgspec

from paged_serve.frontend.helpers.helper_process import HelperProcess

# Slower than the time limit in every part: before it reads, and within its answer.
SLOW_HELPER = """
import time
from paged_serve.frontend.helpers.frames import receive_frame
from paged_serve.frontend.helpers.helper_main import run_helper

def serve(link):
    time.sleep(0.5)
    received = receive_frame(link)
    link.sendall(len(received).to_bytes(4, "little"))
    time.sleep(0.5)
    link.sendall(received[:100])
    time.sleep(0.5)
    link.sendall(received[100:])
    while link.recv(1):
        pass

def main():
    run_helper(serve)
"""


class Text(msgspec.Struct):
    text: str


def test_a_helper_that_lacks_processor_time_is_awaited_while_it_reads_and_while_it_writes(tmp_path, monkeypatch):
    (tmp_path / "slow_helper.py").write_text(SLOW_HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("paged_serve.frontend.helpers.helper_process.ANSWERS_WITHIN_S", 0.1)
    helper, large = HelperProcess("slow_helper"), Text("x" * (2 << 20))  # more than the link's buffers hold
    assert helper.ask(large, Text) == large
    helper.close()
