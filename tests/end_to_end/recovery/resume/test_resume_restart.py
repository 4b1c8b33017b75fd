"""A stream continues after its last event on a server that was restarted with other ranks, threads and blocks."""

from ...serving import Server, serving
from .test_resume import COMPLETION, STORY, ask, first_events, whole

BODY = {**STORY, "stream": True, "stream_options": {"include_usage": True}}
KEY = "survives"


def test_a_stream_survives_a_restart_with_other_ranks_threads_and_blocks(server):
    """The first server goes on, but the second knows nothing of it."""
    events = first_events(ask(server, "POST", COMPLETION, BODY, Idempotency_Key=KEY), 5)
    last_id = events[-1][0]
    answer_id = last_id.partition(":")[0]
    expected = whole(ask(server, "POST", COMPLETION, BODY, Idempotency_Key=KEY, Last_Event_ID=f"{answer_id}:0"))
    with serving("--tp", "2", "--threads", "1", "--num-blocks", "300", "--max-num-batched-tokens", "64") as restarted:
        rest = whole(ask(restarted, "POST", COMPLETION, BODY, Idempotency_Key=KEY, Last_Event_ID=last_id))
        assert b"".join(event for _, event in events) + rest == expected
        assert fingerprint(restarted) == fingerprint(server)


def fingerprint(server: Server) -> str:
    return server.post(COMPLETION, STORY)[1]["system_fingerprint"]
