"""A client session under a clock of the test, and the messages that it sends."""

from paged_serve.frontend.client.session.session import ClientSession
from paged_serve.protocol.messages.engine_core import (
    EngineHeartbeat,
    Welcome,
)
from paged_serve.protocol.messages.handshake import handshake_hello
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..fake_core import LIMITS

PARAMS = SamplingParams(max_tokens=8)


class Link:
    """A session, a clock, and the sent messages."""

    def __init__(self, welcome=True, **options):
        options = {"timeout_s": 60.0, "away_s": 10.0, **options}
        self.now = 100.0
        self.session = ClientSession(handshake_hello("client", 0, 0), self.now, **options)
        self.sent = []
        if welcome:
            self.receive(Welcome(1, **LIMITS))
            self.new()

    def receive(self, message):
        self.session.receive(message, self.now)

    def new(self):
        """The messages that the session sends now."""
        start = len(self.sent)
        self.session.flush(lambda message: self.sent.append(message) or True)
        return self.sent[start:]

    def pass_time(self, seconds, heartbeats=True):
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            if heartbeats:
                self.receive(EngineHeartbeat(0))
            self.session.tick(self.now)

    def kinds(self):
        return [type(message) for message in self.new()]
