"""A supervisor and a worker for tests of the real engine process, in the process of the test."""

import os
import subprocess
import sys
import threading
import time

from paged_serve.engine_core.simulation.fake_workers.fake_worker import FakeWorker
from paged_serve.protocol.messages import control, worker
from paged_serve.protocol.messages.handshake import handshake_hello, identity
from paged_serve.protocol.messages.loading import startup
from paged_serve.protocol.messages.message import MAX_STEP_FRAME_BYTES, Hello
from paged_serve.protocol.process.lifeline import lifeline_pipe
from paged_serve.protocol.transport.authentication import Authenticator, read_secret
from paged_serve.protocol.transport.channel import DealerChannel, RouterChannel, new_context
from paged_serve.protocol.transport.run_dir import CONTROL_SOCKET, WORKERS_SOCKET, endpoint

VOCAB_SIZE, EOS, NUM_BLOCKS = 1000, 999, 64


class EngineHarness:
    """Starts `python -m paged_serve.engine_core.process` and acts as its supervisor."""

    def __init__(self, run_dir, config, epoch=0, core_failures=()):
        self.run_dir, self.epoch = run_dir, epoch
        self.context = new_context()
        self.authenticator = Authenticator(self.context, read_secret(run_dir))
        self.control = RouterChannel(self.context, endpoint(run_dir, CONTROL_SOCKET), control.FromChild)
        self.lifeline, self.write_end = lifeline_pipe()
        command = [sys.executable, "-m", "paged_serve.engine_core.process", "--run-dir", run_dir, "--index", "0"]
        command += ["--epoch", str(epoch), "--lifeline-fd", str(self.lifeline)]
        self.process = subprocess.Popen(command, pass_fds=[self.lifeline], stderr=subprocess.PIPE)
        self.peer, hello = self._receive(60)
        assert isinstance(hello, Hello)
        self.control.send(self.peer, control.Welcome(config, core_failures))

    def _receive(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while (received := self.control.receive()) is None:
            left = deadline - time.monotonic()
            assert left > 0, f"the engine process is silent; {self.process.poll()=}"
            self.control.socket.poll(max(1, int(1000 * left)))
        return received

    def wait_for(self, kind, timeout_s=60.0):
        """The next message of `kind` from the engine process."""
        deadline = time.monotonic() + timeout_s
        while not isinstance(message := self._receive(deadline - time.monotonic())[1], kind):
            pass
        return message

    def send(self, message):
        assert self.control.send(self.peer, message)

    def close(self):
        os.close(self.write_end)
        self.process.kill()
        self.process.communicate()
        os.close(self.lifeline)
        self.control.close()
        self.authenticator.close()
        self.context.term()


class FakeRank(threading.Thread):
    """One worker: sends Hello, loads no weights, executes plans until it is stopped or `kill` is called."""

    def __init__(
        self,
        run_dir,
        block_size,
        epoch=0,
        rank=0,
        num_blocks=NUM_BLOCKS,
        ignores_after=None,
        corrupts_step=None,
        windows=(0,),
        max_model_len=256,
    ):
        super().__init__(name=f"rank-{rank}")
        self.run_dir, self.block_size, self.epoch, self.rank = run_dir, block_size, epoch, rank
        self.num_blocks, self.ignores_after = num_blocks, ignores_after
        self.corrupts_step = corrupts_step  # the number of the step whose answer cannot be decoded
        self.windows, self.max_model_len = windows, max_model_len
        self.refused = None
        self.error = None
        self.num_steps = 0
        self._killed = threading.Event()
        self.start()

    def run(self):
        context = new_context()
        link = DealerChannel(
            context,
            endpoint(self.run_dir, WORKERS_SOCKET),
            read_secret(self.run_dir),
            identity("worker", self.rank, self.epoch),
            worker.ToWorker,
            max_frame_bytes=MAX_STEP_FRAME_BYTES,
        )
        try:
            assert link.wait_connected(60)
            link.send(handshake_hello("worker", self.rank, self.epoch))
            self._serve(link)
        except Exception as error:
            self.error = error
            link.send(worker.WorkerFailed(self.rank, repr(error)))
        finally:
            link.close(linger_s=0.2)
            context.term()

    def _serve(self, link):
        fake = None
        while not self._killed.is_set():
            message = link.receive(0.05)
            match message:
                case worker.Welcome():
                    link.send(startup.LoadProgress(self.rank, 5, 10))
                    groups, limit = tuple(map(startup.KVGroup, self.windows)), self.max_model_len
                    size = (self.num_blocks, self.block_size, 1024, limit, VOCAB_SIZE)
                    link.send(
                        startup.WorkerReady(self.rank, *size, (EOS,), "float32", "cpu", 10**7, 0.5, kv_groups=groups)
                    )
                case startup.CreateKVCache(num_blocks=num_blocks):
                    fake = FakeWorker(num_blocks, self.block_size, VOCAB_SIZE, self.epoch, groups=groups)
                    link.send(startup.KVCacheReady(self.rank))
                case worker.SchedulerOutput():
                    self.num_steps += 1
                    answer = fake.execute(message)
                    if self.rank == 0 and (self.ignores_after is None or self.num_steps <= self.ignores_after):
                        link.socket.send(b"?") if self.num_steps == self.corrupts_step else link.send(answer)
                case worker.Shutdown():
                    return
                case None:
                    pass
                case refused:
                    self.refused = refused
                    return

    def kill(self):
        """Ends without a message, as SIGKILL would."""
        self._killed.set()
        self.join()
