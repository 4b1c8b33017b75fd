"""Machines are held to one another: what models say is what a file in this folder says, bit for bit.

After a change of arithmetic that is meant, `just golden` writes it anew.
"""

import json

import pytest

from paged_serve.workers.kernels import cpu

from . import golden


@pytest.mark.parametrize("name", golden.MODELS)
@pytest.mark.parametrize("isa", cpu.runnable_isas())
def test_a_model_says_what_it_said_elsewhere(isa, name, tmp_path):
    assert golden.said(isa, name, tmp_path) == json.loads(golden.FILE.read_text())[name]


def test_there_is_a_record_of_every_model():
    assert json.loads(golden.FILE.read_text()).keys() == golden.MODELS.keys()
