"""A worker that crashes on one token: a prompt that contains it kills the process, like a bug in a kernel."""

import os
import signal

from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.workers.process.worker_process import main
from paged_serve.workers.runner.steps import Steps

POISON = 777

launch = Steps.launch


def launch_or_die(self, plan):
    if any(POISON in unpack_ids(row.token_ids)[: row.prompt_len] for row in plan.new_rows):
        os.kill(os.getpid(), signal.SIGSEGV)
    launch(self, plan)


Steps.launch = launch_or_die
main()
