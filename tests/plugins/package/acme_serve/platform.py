"""A device that is simulated on the CPU, in plain torch."""

from paged_serve.workers.backends.torch.backend import SingleRowsBackend


class Simulated:
    def num_devices(self) -> int:
        return 1

    def backend(self, index: int) -> SingleRowsBackend:
        return SingleRowsBackend()

    def free_bytes(self, index: int) -> int:
        return 8 << 20


SIMULATED = Simulated()
