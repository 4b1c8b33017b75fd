"""A requested form and instruction set of a workload replace those drawn from its seed."""

from typing import get_args

import pytest

from .random_workload import Form, draw_workload


@pytest.mark.parametrize("form", get_args(Form))
def test_a_workload_has_the_requested_form_and_instruction_set(form):
    for seed in range(60):
        drawn, asked = draw_workload(seed), draw_workload(seed, form, "portable")
        choice = asked.choice
        assert choice.isa == "portable"
        assert (choice.checkpoint == "llama-float32") == (form == "fp32")
        assert choice.quantization == (form if form in ("int8", "int4") else "auto")
        assert choice.dtype == ("float16" if form == "fp16" else "auto") or form in ("int8", "int4")
        assert (choice.threads, choice.summation) == (drawn.choice.threads, drawn.choice.summation)
