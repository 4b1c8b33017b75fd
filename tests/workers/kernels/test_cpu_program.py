"""Recorded kernel calls that are replayed by one call."""

import torch

from paged_serve.workers.kernels.cpu.programs.program import Program, recorded_calls

from ..elementwise_calls import rms_norm, silu_mul


def test_a_program_replays_its_calls(cpu_pools):
    """The calls run in order, on the current contents of their memory, and their parameters do not overlap."""
    for pool in cpu_pools:
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.randn(33, 48, generator=generator) for _ in range(2)]
        weight, x = torch.rand(48, generator=generator), torch.empty(33, 48)
        normed, gated, again = torch.empty(33, 48), torch.empty(33, 24), torch.empty(33, 24)

        def layers():
            silu_mul(pool, rms_norm(pool, x, weight, 1e-6, out=normed), out=gated)  # noqa: B023
            rms_norm(pool, gated, weight[:24], 1e-6, out=again)  # noqa: B023
            return again.clone()  # noqa: B023

        x.copy_(inputs[0])
        expected = layers()
        x.copy_(inputs[1])
        with recorded_calls(pool) as calls:
            other = layers()
        assert [name for name, _ in calls] == ["norm", "activate", "norm"]
        program = Program(pool, calls)
        del calls
        x.copy_(inputs[0])
        program.run()
        assert torch.equal(again, expected)
        assert not torch.equal(again, other)


def test_no_program_replays_while_kernels_are_watched(cpu_pools):
    pool, x = cpu_pools[0], torch.ones(2, 16)
    functions, seen = pool.functions, []
    with pool.watched(lambda name, kernel: lambda *arguments: (seen.append(name), kernel(*arguments))):
        assert not pool.runs_programs
        silu_mul(pool, x)
    silu_mul(pool, x)
    assert seen == ["activate"]
    assert pool.runs_programs
    assert pool.functions is functions
