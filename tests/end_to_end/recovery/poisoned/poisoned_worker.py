"""A worker that crashes on one token: a prompt that contains it kills the process, like a bug in a kernel.

UNLUCKY is a token during which the first two worker groups crash for another reason.
"""

import os
import signal

from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.workers.process.worker_process import main
from paged_serve.workers.runner.steps import Steps

POISON, UNLUCKY, NUM_CRASHES = 777, 779, 2

launch = Steps.launch


def launch_or_die(self, plan):
    prompts = [unpack_ids(row.token_ids)[: row.prompt_len] for row in plan.new_rows]
    if any(POISON in prompt or (UNLUCKY in prompt and plan.epoch < NUM_CRASHES) for prompt in prompts):
        os.kill(os.getpid(), signal.SIGSEGV)
    launch(self, plan)


Steps.launch = launch_or_die
main()
