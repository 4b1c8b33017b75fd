"""Rows in groups of one adapter."""

import numpy as np
import pytest

from paged_serve.workers.batch.input_batch import GROUP_ROWS, adapter_groups, groups_in


@pytest.mark.parametrize("seed", range(30))
def test_every_row_with_an_adapter_is_in_one_group_of_that_adapter(seed):
    rng = np.random.default_rng(seed)
    count, kinds = int(rng.integers(0, 120)), int(rng.integers(1, 9))
    adapters = rng.integers(0, kinds, count).astype(np.int32)
    table, most = adapter_groups(adapters, count)
    groups = groups_in(table)
    assert len(table) == 1 + 4 * count
    assert len(groups) == most == int(table[0])
    assert sorted(row for _, rows in groups for row in rows) == np.flatnonzero(adapters).tolist()
    for place, rows in groups:
        assert 1 <= len(rows) <= GROUP_ROWS
        assert (adapters[rows] == place).all()
    by_place = [place for place, rows in groups if len(rows) == GROUP_ROWS]
    assert len(groups) == sum(-(-int((adapters == place).sum()) // GROUP_ROWS) for place in range(1, kinds))
    assert by_place == sorted(by_place)


def test_a_step_without_adapters_has_no_groups():
    for adapters in (None, np.zeros(5, np.int32)):
        table, most = adapter_groups(adapters, 5)
        assert (most, table.tolist()) == (0, [0] * 21)
