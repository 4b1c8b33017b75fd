"""The test of the simulations: every bug of mutations.py, planted in a copy of the sources, must make a seed fail."""

import pytest

from .mutations import MUTATIONS
from .planted import CAUGHT, copy_sources, plant, run

LIMIT_S = 600


def test_every_planted_bug_still_applies_to_the_source(tmp_path):
    copy_sources(tmp_path)
    for mutation in MUTATIONS:
        source = (tmp_path / mutation[0]).read_text()
        plant(tmp_path, mutation)
        (tmp_path / mutation[0]).write_text(source)


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
def test_every_seed_passes_without_a_bug():
    code, output = run(None, LIMIT_S)
    assert code == 0, output


@pytest.mark.nightly
@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("number", range(len(MUTATIONS)))
def test_every_planted_bug_is_caught(number):
    code, output = run(MUTATIONS[number], LIMIT_S)
    assert code == CAUGHT, f"no simulation detected {MUTATIONS[number]}\n{output}"
