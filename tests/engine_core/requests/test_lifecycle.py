import itertools

import pytest

from paged_serve.engine_core.requests.request import TRANSITIONS, SequenceEvent, SequenceState
from paged_serve.protocol.state_machine import IllegalTransition


@pytest.mark.parametrize(("state", "event"), list(itertools.product(SequenceState, SequenceEvent)))
def test_an_illegal_event_raises_and_changes_nothing(drive, state, event):
    driver = drive()
    sequence = driver.sequence(driver.add(3))
    sequence.state = state
    before = {name: getattr(sequence, name) for name in sequence.__slots__}
    if (state, event) in TRANSITIONS:
        sequence.fire(event)
        assert sequence.state is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event.name} in state {state.name}"):
            sequence.fire(event)
        assert {name: getattr(sequence, name) for name in sequence.__slots__} == before


def test_no_event_leaves_the_finished_state():
    assert not any(state is SequenceState.FINISHED for state, _ in TRANSITIONS)


def test_every_state_can_finish():
    for state in set(SequenceState) - {SequenceState.FINISHED}:
        assert TRANSITIONS[state, SequenceEvent.FINISH] is SequenceState.FINISHED
