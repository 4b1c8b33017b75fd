"""The kernels of recurrent layers: against float64 and plain torch, and to the bit whatever the steps."""

import pytest
import torch

from paged_serve.workers.kernels.cuda.recurrent.gates import GATE_FUNCTIONS

from ..checks.checks_recurrent import (
    BF16,
    FP16,
    check_a_start_from_a_kept_state,
    check_gated_norm,
    check_layer,
    check_norm_parts,
    check_padding,
    check_recurrent,
    check_sigmoid_gate,
    check_spans_of_convolutions,
)
from ..checks.recurrent_case import CONVOLUTIONS, LAYERS

ALL = {**CONVOLUTIONS, **LAYERS}


def test_the_kernels_of_recurrent_layers_are_correct(launcher, device):
    check_recurrent(launcher, device)


@pytest.mark.nightly
def test_the_kernels_of_recurrent_layers_are_race_free_in_every_schedule(scheduled, device):
    check_recurrent(scheduled, device)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_a_tokens_bits_depend_on_no_other_row_and_on_no_division_into_steps(launcher, device, name, dtype):
    check_layer(launcher, ALL[name], dtype, (53, 1, 16, 2), seeds=(1, 2))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_no_number_of_tokens_of_a_thread_block_changes_a_bit(launcher, device, name, dtype):
    check_spans_of_convolutions(launcher, CONVOLUTIONS[name], dtype, spans=(1, 2, 3, 5, 16, 64))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALL)
def test_kept_states_and_padding_are_as_the_cache_wants_them(launcher, device, name):
    check_a_start_from_a_kept_state(launcher, ALL[name], BF16)
    check_padding(launcher, ALL[name], BF16)


@pytest.mark.nightly
@pytest.mark.parametrize("gates_last", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("sizes", [(96, 24), (1000, 250), (5120, 5120), (256, 128)], ids=str)
def test_each_group_is_normalised_alone(launcher, device, sizes, dtype, gates_last):
    check_gated_norm(launcher, dtype, 5, *sizes, gates_last, device)
    for by in GATE_FUNCTIONS:
        check_sigmoid_gate(launcher, dtype, 5, sizes[0], by, device)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("sizes", [(6, 24), (48, 8), (160, 16), (512, 264)], ids=str)
def test_each_part_of_a_projection_of_mamba_1_is_normalised_alone(launcher, device, sizes, dtype):
    check_norm_parts(launcher, dtype, 5, *sizes, device)


def test_states_of_another_dtype_are_refused(launcher, device):
    """The kernel would read them as float32."""
    from ..checks.recurrent_case import States, requests_of

    layer = LAYERS["mamba 2, no whole columns"]
    states = States(launcher, layer, requests_of(layer, BF16, (1,)), BF16)
    states.blocks = states.blocks.to(torch.float64)
    with pytest.raises(AssertionError, match="float64"):
        states.computed([[(0, 1)]])
