"""How a fake worker ends."""


class WorkerDied(Exception):
    """The worker crashed during a step or a load, as after a segmentation fault."""
