"""`python -m paged_serve.engine_core`: started by the supervisor."""

from paged_serve.protocol.process.lifecycle import ChildProcess, run_child

from .process import EngineProcess


def main(child: ChildProcess) -> None:
    EngineProcess(child).run()


if __name__ == "__main__":
    run_child("engine-core", main)
