"""A server and two clients: the openai package and plain HTTP.

Run it:

    pip install openai
    python examples/server_and_clients.py [MODEL]
"""

import json
import socket
import subprocess
import sys
import time
import urllib.request

from openai import OpenAI


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_ready(server: subprocess.Popen, url: str) -> None:
    """Wait until the model is loaded."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/ready")
            return
        except OSError:  # the port is not open yet, or status 503: the model is loading
            time.sleep(0.1)
    raise SystemExit(f"the server ended with exit code {server.returncode}")


def main(*model: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "paged_serve", "serve", *model, "--port", str(port)])
    try:
        wait_ready(server, url)
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            name = client.models.list().data[0].id
            answer = client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "What is the capital of Italy?"}], temperature=0
            )
            print("chat:  ", answer.choices[0].message.content)
            stream = client.completions.create(model=name, prompt="The capital of Peru is", temperature=0, stream=True)
            pieces = [chunk.choices[0].text for chunk in stream]
            print("stream:", "".join(pieces), f"in {len(pieces)} pieces")

        body = json.dumps({"model": name, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8})
        request = urllib.request.Request(f"{url}/v1/completions", body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            print("HTTP:  ", json.load(response)["choices"][0]["text"])
    finally:
        server.terminate()  # the server finishes running requests, then ends
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
