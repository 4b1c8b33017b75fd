"""block_copy.cu: equality, and the other blocks stay as they were."""

import pytest

from .checks_elementwise import check_block_copy


@pytest.mark.parametrize("num_planes", [1, 4])
@pytest.mark.parametrize("block_bytes", [16, 16 * 255, 16 * 1024, 16 * 1025, 16 * 2500])
def test_each_plane_gets_the_blocks_it_was_told_to(launcher, device, block_bytes, num_planes):
    check_block_copy(launcher, block_bytes, num_planes, device)
