"""Detection of repetitions in an output."""

import random

import pytest

from paged_serve.engine_core.requests.stopping import repeats
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.samplers import RepetitionDetection
from paged_serve.protocol.messages.sampling_params import SamplingParams


def by_definition(output: list[int], detection: RepetitionDetection) -> bool:
    for size in range(max(1, detection.min_pattern_size), detection.max_pattern_size + 1):
        tail = output[-size * detection.min_count :]
        if len(tail) == size * detection.min_count and tail == tail[:size] * detection.min_count:
            return True
    return False


def test_a_repetition_is_found_according_to_the_definition():
    rng, found = random.Random(3), 0
    for _ in range(5000):
        high = rng.randint(1, 6)
        detection = RepetitionDetection(
            max_pattern_size=high, min_pattern_size=rng.randint(0, high), min_count=rng.randint(2, 4)
        )
        pattern = [rng.randrange(3) for _ in range(rng.randint(1, 8))]
        output = ([rng.randrange(3) for _ in range(rng.randint(0, 5))] + pattern * rng.randint(1, 5))[
            : rng.randint(1, 40)
        ]
        assert repeats(output, detection) == by_definition(output, detection)
        found += repeats(output, detection)
    assert 500 < found < 4500


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_pattern_size": 0, "min_count": 2}, "max_pattern_size is 0"),
        ({"max_pattern_size": 129, "min_count": 2}, "between 1 and 128"),
        ({"max_pattern_size": 4, "min_count": 1}, "min_count is 1"),
        ({"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2}, "above max_pattern_size=4"),
        ({"max_pattern_size": 128, "min_count": 17}, "at most 2048 are compared"),
        ({"max_pattern_size": True, "min_count": 2}, "max_pattern_size is True"),
    ],
)
def test_invalid_parameters_are_refused(fields, words):
    with pytest.raises(InvalidRequest, match=words):
        RepetitionDetection(**fields)


def test_a_dict_is_not_a_repetition_detection():
    with pytest.raises(InvalidRequest, match="it must be a RepetitionDetection"):
        SamplingParams(repetition_detection={"max_pattern_size": 2, "min_count": 2})
