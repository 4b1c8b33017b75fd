"""Follows the prefix cache, and tells how much of a prompt it has: what a router asks before it chooses a server.

Run it:

    python examples/kv_events.py
"""

import tempfile

import zmq

from paged_serve import LLM, SamplingParams
from paged_serve.protocol.block_hash import chain_blocks, chain_root
from paged_serve.protocol.kv_events.index import KVEventIndex
from paged_serve.protocol.kv_events.messages import END_OF_REPLAY, sequence_bytes
from paged_serve.protocol.messages.message import pack_ids

BLOCK_SIZE = 16
PROMPT = "The capital of Japan is Tokyo. " * 12


class Follower:
    """An index kept up to date by a subscription, and by replays when batches were lost."""

    def __init__(self, endpoint: str, replay_endpoint: str):
        self.index = KVEventIndex()
        self._sub = zmq.Context.instance().socket(zmq.SUB)
        self._sub.subscribe(b"")
        self._sub.connect(endpoint)
        self._replay_endpoint = replay_endpoint

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        self._sub.close()

    def receive(self, timeout_s: float) -> bool:
        """Apply what is published within `timeout_s`; False: nothing was."""
        if not self._sub.poll(int(1000 * timeout_s)):
            return False
        _, number, batch = self._sub.recv_multipart()
        if not self.index.receive(int.from_bytes(number, "big"), batch):
            self.replay()
        return True

    def replay(self) -> None:
        """Ask until an answer is whole. A socket serves one request, so that no late answer meets another request."""
        while not self._replay_once():
            pass

    def _replay_once(self, timeout_s: float = 5.0) -> bool:
        with zmq.Context.instance().socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(self._replay_endpoint)
            socket.send_multipart([b"", sequence_bytes(self.index.begin_replay())])
            while socket.poll(int(1000 * timeout_s)):
                _, number, batch = socket.recv_multipart()
                if number == END_OF_REPLAY:
                    self.index.end_replay()
                    return True
                self.index.replayed(int.from_bytes(number, "big"), batch)
        return False


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sockets = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        options = {"kv_events_endpoint": sockets[0], "kv_events_replay_endpoint": sockets[1]}
        with LLM(block_size=BLOCK_SIZE, **options) as llm, Follower(*sockets) as follower:
            follower.replay()
            [output] = llm.generate([PROMPT], SamplingParams(max_tokens=1), use_tqdm=False)
            prompt = chain_blocks(chain_root(BLOCK_SIZE, ""), pack_ids(output.prompt_token_ids), BLOCK_SIZE)
            while not follower.index.blocks:
                follower.receive(timeout_s=10.0)
            found = sum((block, 0) in follower.index.blocks for block in prompt)
            print(f"{found} of {len(prompt)} blocks of the prompt are in the cache")


if __name__ == "__main__":
    main()
