"""Results that a sequence or a client cannot be given: each ends in an error, and only there."""

import msgspec
import pytest

from paged_serve.engine_core.process.utility_calls import answer_call
from paged_serve.protocol.errors import ProtocolError
from paged_serve.protocol.messages.engine_core import MAX_UTILITY_BYTES, RejectReason, Utility, UtilityCall
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import ModelRunnerOutput, RowFailure, RowLogprobs

from .changed_answers import not_finite


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: ModelRunnerOutput(answer.epoch, answer.step + 1, answer.token_ids, 0.0),
        lambda answer: ModelRunnerOutput(answer.epoch, answer.step, answer.token_ids + pack_ids([1]), 0.0),
        lambda answer: ModelRunnerOutput(answer.epoch, answer.step, b"", 0.0),
        not_finite(-1),
        not_finite(1),
        lambda answer: ModelRunnerOutput(
            answer.epoch, answer.step, answer.token_ids, 0.0, (RowLogprobs(1, pack_ids([1]), pack_ids([1]), 1),)
        ),
    ],
)
def test_a_result_that_does_not_fit_its_step_is_a_worker_error_and_changes_nothing(drive, change):
    driver = drive()
    stream = driver.add(5, max_tokens=4)
    driver.plan()
    driver.execute()
    with pytest.raises(ProtocolError):
        driver.engine.apply(change(driver.answers[0]), 0.0)
    driver.run()
    assert len(driver.tokens[stream]) == 4


def test_a_state_too_large_to_send_is_answered_with_an_error(drive):
    driver = drive(max_num_queued_requests=10_000, max_num_seqs=1)
    for _ in range(80):
        driver.add([1], n=100, seed=1)
    answer = answer_call(driver.engine, UtilityCall(1, Utility.DUMP_STATE), driver.now, is_remote=False)
    assert f"the limit is {MAX_UTILITY_BYTES}" in answer.error
    assert answer.result == b"{}"


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_row_whose_grammar_cannot_continue_ends_with_the_reason_and_affects_no_other_row(drive, steps_before):
    alone = drive()
    kept = alone.add([2] * 6, max_tokens=10, seed=1)
    alone.run()
    driver = drive(pipeline_depth=2)
    failing, other = driver.add([1] * 6, max_tokens=10), driver.add([2] * 6, max_tokens=10, seed=1)
    for _ in range(steps_before):
        driver.step()

    def fail(answer):
        return msgspec.structs.replace(answer, failures=(RowFailure(0, "no output satisfies the grammar"),))

    driver.plan()
    driver.execute()
    driver.plan()
    driver.apply(fail)
    while driver.plans:
        driver.execute()
    driver.run()
    assert driver.ends[failing].finish_reason is FinishReason.ERROR
    assert (driver.ends[failing].error, driver.ends[failing].param) == ("no output satisfies the grammar", "")
    assert len(driver.tokens[failing]) == steps_before
    assert driver.tokens[other] == alone.tokens[kept]
    assert driver.engine.is_idle


@pytest.mark.parametrize(("steps_before", "n"), [(0, 1), (0, 3), (2, 2)])
def test_a_request_with_a_wrong_parameter_is_rejected_unless_it_has_tokens(drive, steps_before, n):
    driver = drive(pipeline_depth=2)
    failing = driver.add([1] * 6, max_tokens=10, n=n)
    for _ in range(steps_before):
        driver.step()

    def fail(answer):
        indices = range(len(answer.token_ids) // 4)
        wrong = tuple(RowFailure(index, "its arguments are wrong", "logits_processors") for index in indices)
        return msgspec.structs.replace(answer, failures=wrong)

    while not driver.engine.is_idle:
        while driver.plan() is not None:
            driver.execute()
        driver.apply(fail)
    if steps_before:
        ends = {(end.error, end.param) for index in range(n) for end in [driver.ends[failing + index]]}
        assert ends == {("its arguments are wrong", "logits_processors")}
    else:
        [rejection] = driver.rejections
        assert (rejection.request_id, rejection.param) == (failing, "logits_processors")
        assert rejection.reason is RejectReason.INVALID
        assert not driver.tokens[failing]
