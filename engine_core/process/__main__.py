"""`python -m paged_serve.engine_core.process`: started by the supervisor."""

from paged_serve.protocol.process.lifecycle import ChildProcess, run_child

from .engine_process import EngineProcess


def main(child: ChildProcess) -> None:
    EngineProcess(child).run()


if __name__ == "__main__":
    run_child("engine-core", main)
