"""A stream that outlives its worker, whatever the next one meets while it loads."""

import threading
from contextlib import ExitStack

from paged_serve.frontend.client.sync_client import Client
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.messages.sampling_params import SamplingParams

PARAMS = SamplingParams(max_tokens=400, temperature=0.0, ignore_eos=True)


def continue_a_stream(supervisor: Supervisor, ready_within_s: float) -> int:
    """Kill the worker in the middle of a stream, which must have the tokens of an undisturbed one; the last epoch."""
    supervisor.start()
    supervisor.wait_ready(ready_within_s)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    with ExitStack() as ends:
        ends.callback(thread.join, 60)
        ends.callback(supervisor.stop)
        client = ends.enter_context(Client.connect(supervisor.run_dir))
        undisturbed = [token for delta in client.submit([1, 2, 3], PARAMS) for token in delta.token_ids]
        stream = iter(client.submit([1, 2, 3], PARAMS))
        tokens = [*next(stream).token_ids]
        supervisor._processes.of_role("worker")[0].process.kill()
        tokens += [token for delta in stream for token in delta.token_ids]
        assert tokens == undisturbed
        return supervisor._recovery.engine_epoch
