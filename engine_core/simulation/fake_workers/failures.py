"""Rows of a simulation for which no token can be sampled, as where a grammar ends or a plugin fails."""

import random
from collections.abc import Callable
from dataclasses import replace

from ..scenario import Scenario, happens

NO_TOKEN = "the grammar allows no token"


def with_failures(scenario: Scenario) -> Scenario:
    """The same with such rows, and with a prefix cache that is emptied at times."""
    rng = random.Random(f"failures of {scenario.seed}")
    return replace(scenario, failure=rng.choice((0.003, 0.02)), reset=rng.choice((0.0, 0.01)))


def wrong_params(scenario: Scenario, epoch: int) -> Callable[[], str | None]:
    """For each token: None, or that it cannot be sampled, with the parameter that is wrong; "": none is."""
    rng = random.Random(f"failures of {scenario.seed}, {epoch}")
    return lambda: rng.choice(("", "logits_processors")) if happens(rng, scenario.failure) else None


def is_failure(scenario: Scenario, reason: str) -> bool:
    return scenario.failure > 0.0 and reason == NO_TOKEN
