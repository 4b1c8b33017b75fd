"""A supervisor of fake children in a separate process: prints its children's process ids once they are ready."""

import json
import sys

import msgspec

from paged_serve.frontend.listen import open_http_socket
from paged_serve.frontend.supervision.supervisor import Supervisor
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.process.log import configure_logging

MODULES = {"engine-core": "fake_engine_core", "worker": "fake_worker", "frontend": "fake_frontend"}


def main() -> None:
    configure_logging("supervisor")
    config = msgspec.json.decode(sys.argv[1], type=Config)
    supervisor = Supervisor(config, open_http_socket(config.server), modules=MODULES)

    def print_facts(facts: dict[str, str]) -> None:
        print(json.dumps({"run_dir": supervisor.run_dir, "pids": supervisor.pids}), flush=True)

    with supervisor.signals():
        supervisor.start()
        exit_code = supervisor.run(on_ready=print_facts)
    if supervisor.reason:
        print(supervisor.reason, file=sys.stderr)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
