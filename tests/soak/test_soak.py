"""The nightly soak: all kinds of traffic, for an hour or SOAK_MINUTES."""

import os

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess
from .run import OPTIONS, Soak, run

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))

pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.nightly,
    pytest.mark.timeout(60 * MINUTES + 900),
]


def test_no_figure_grows_and_no_answer_changes(tmp_path_factory):
    server = ServerProcess(tmp_path_factory.mktemp("t"), *OPTIONS)
    try:
        report = run(Soak(MINUTES, seed=1), server)
        print(report.text())
        assert not report.failures, report.text()
        assert min(report.done.values()) > 0, report.text()
    finally:
        server.close()
