"""Rows of a simulation for which no token can be sampled, as where a grammar ends or a plugin fails."""

import random
from collections.abc import Callable
from dataclasses import replace

from ..scenarios.scenario import Scenario, happens


def with_failures(scenario: Scenario) -> Scenario:
    """The same with such rows, and with a prefix cache that is emptied at times."""
    rng = random.Random(f"failures of {scenario.seed}")
    return replace(scenario, failure=rng.choice((0.003, 0.02)), reset=rng.choice((0.0, 0.01)))


def wrong_params(scenario: Scenario, epoch: int) -> Callable[[], str | None]:
    """For each token: None, or that it cannot be sampled, with the parameter that is wrong; "": none is."""
    rng = random.Random(f"failures of {scenario.seed}, {epoch}")
    return lambda: rng.choice(("", "logits_processors")) if happens(rng, scenario.failure) else None


def reason_of(param: str) -> str:
    return f"{param} is wrong" if param else "the plugin failed"


def is_failure(scenario: Scenario, reason: str, param: str) -> bool:
    return scenario.failure > 0.0 and reason == reason_of(param)
