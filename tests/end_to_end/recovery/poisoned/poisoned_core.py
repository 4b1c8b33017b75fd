"""An engine core that crashes on two tokens, as if it had a bug.

A prompt with POISON kills the process when it is added to the engine; one with SLOW_POISON, when its
output has five tokens or more.
"""

import os
import signal

from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.process.__main__ import main
from paged_serve.protocol.messages.message import unpack_ids
from paged_serve.protocol.process.lifecycle import run_child

POISON, SLOW_POISON = 777, 778
DEADLY_TOKENS = 5

take_in, apply = EngineCore.add_request, EngineCore.apply


def die():
    os.kill(os.getpid(), signal.SIGSEGV)


def take_in_or_die(self, client, message, now):
    outgoing = take_in(self, client, message, now)
    if POISON in unpack_ids(message.prompt_token_ids) and any(
        message.request_id in outbox.streams for outbox in self.clients.values()
    ):
        die()
    return outgoing


def apply_or_die(self, output, now):
    outgoing = apply(self, output, now)
    for sequence in self.scheduler.running:
        if SLOW_POISON in unpack_ids(sequence.request.prompt) and len(sequence.output) >= DEADLY_TOKENS:
            die()
    return outgoing


EngineCore.add_request, EngineCore.apply = take_in_or_die, apply_or_die
run_child("engine-core", main)
