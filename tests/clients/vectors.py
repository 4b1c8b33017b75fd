"""The server's answers for texts, requested without a client library."""

import json
from urllib.request import Request, urlopen

TEXTS = ["The capital of France is Paris.", "Cats sleep a lot.", "The sea is blue."]


def vectors_of(url: str, texts: list[str]) -> list[list[float]]:
    body = json.dumps({"model": "demo", "input": texts}).encode()
    with urlopen(Request(f"{url}/embeddings", body, {"Content-Type": "application/json"})) as response:
        return [entry["embedding"] for entry in json.load(response)["data"]]
