"""`timings_per_token`: the timings of a request in its answer."""

from ...http_server import Server

BODIES = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 20},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


def check(timings: dict, num_generated: int) -> None:
    assert (timings["cache_n"], timings["predicted_n"]) == (1, num_generated)
    assert timings["prompt_n"] > 0
    for kind in ("prompt", "predicted"):
        count, milliseconds = timings[f"{kind}_n"], timings[f"{kind}_ms"]
        assert milliseconds >= 0
        if milliseconds > 1:  # below this, rounding dominates
            assert abs(timings[f"{kind}_per_token_ms"] - milliseconds / count) < 0.01
            assert abs(timings[f"{kind}_per_second"] / (1000 * count / milliseconds) - 1) < 0.01


def test_an_answer_has_its_timings(folder):
    for path, body in BODIES.items():
        answer = Server(folder, "hello").good(path, body | {"timings_per_token": True})
        check(answer["timings"], 6)


def test_each_event_has_its_timings(folder):
    for path, body in BODIES.items():
        chunks = Server(folder, "hello").stream(path, body | {"timings_per_token": True})
        generated = [chunk["timings"]["predicted_n"] for chunk in chunks]
        assert generated == sorted(generated)
        assert generated[-1] == 6
        check(chunks[-1]["timings"], 6)


def test_timings_are_sent_only_on_request(folder):
    for path, body in BODIES.items():
        assert "timings" not in Server(folder).good(path, body)
        assert not any("timings" in chunk for chunk in Server(folder).stream(path, body))


def test_an_answer_with_a_key_has_no_timings(folder):
    body = BODIES["/v1/completions"] | {"timings_per_token": True}
    response = Server(folder).ask("POST", "/v1/completions", body, **{"Idempotency-Key": "k" * 16})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "timings_per_token")
