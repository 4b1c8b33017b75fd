"""A child without a process."""

from paged_serve.frontend.supervision.processes.child import ChildState


class FakeChild:
    """The attributes of a child that the hang detector reads."""

    def __init__(self, role: str, state: ChildState, *, halted: bool = False, at_work: bool = True):
        self.role, self.state, self.halted, self.at_work = role, state, halted, at_work
        self.last_heard = 0.0
        self.failure = ""
        self.hangs_in_load = False
        self.asleep_since = None

    def exit_reason(self) -> str:
        return "gone"

    def is_stopped(self) -> bool:
        return self.halted

    def is_at_work(self) -> bool:
        return self.at_work
