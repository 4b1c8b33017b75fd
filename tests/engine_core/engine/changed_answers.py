"""Changes to the answers of workers, and a step with such an answer."""

from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.worker import ModelRunnerOutput


def with_token(token, index=0):
    """Changes an answer of the workers: sampled token `index` becomes `token`."""

    def change(answer):
        ids = unpack_ids(answer.token_ids)
        ids[index] = token
        return ModelRunnerOutput(answer.epoch, answer.step, pack_ids(ids), answer.step_s)

    return change


def not_finite(index):
    def change(answer):
        return ModelRunnerOutput(
            answer.epoch, answer.step, answer.token_ids, answer.step_s, nan_indices=pack_ids([index])
        )

    return change


def advance(driver, change=lambda answer: answer):
    driver.plan()
    driver.execute()
    driver.apply(change)
