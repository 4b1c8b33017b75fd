"""Like test_random_workloads.py, with every family that has recurrent layers, latent attention or experts.

Some are stored in e4m3 codes, which the kernels multiply in bfloat16 models.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial

import pytest

from ...tiny_models.checkpoints import CONTRACT_VARIANTS
from .test_random_workloads import load, run_workload
from .variant_workload import draw_variant_workload

__all__ = ["load"]  # the fixture

SLICES = {"mamba2": (73, 78), "zamba2": (12, 16), "qwen3-next": (12, 16), "deepseek-v3.2": (12, 16)}
IN_FP8 = (
    *(
        "qwen3-moe in fp8-16",
        "deepseek-v3 in fp8-16",
        "deepseek-v3.2 in fp8-16",
        "glm4-moe-wide in fp8-128",
        "glm4-moe-wide in ct-fp8",
    ),
    *("llama4-experts in fp8-16", "llama4-experts in ct-fp8"),
    *("qwen3-next in fp8-16", "lfm2 in fp8-16", "falcon-h1 in ct-fp8-tensor"),
)
NIGHTLY = range(60)


def run_variant(load, variant: str, seeds: Iterable[int], *events: str) -> None:
    """Runs workloads of the variant, in which these events must occur."""
    draw = partial(draw_variant_workload, variant=variant)
    total = sum((run_workload(load, seed, draw=draw) for seed in seeds), Counter[str]())
    print(variant, dict(total))
    assert total["ranks"] > total["workloads"], "no model was shared by ranks"
    for event in ("cached tokens", "restarts", *events):
        assert total[event], f"there were no {event}, so the workloads do not test them"


@pytest.mark.parametrize(("variant", "seeds"), SLICES.items())
def test_a_slice_of_workloads_of_a_model_gives_each_request_the_same_bytes(load, variant, seeds):
    run_variant(load, variant, seeds)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("variant", [*CONTRACT_VARIANTS, *IN_FP8])
def test_many_workloads_of_each_family_give_each_request_the_same_bytes(load, variant):
    run_variant(load, variant, NIGHTLY, "aborts", "float16", "vectors")
