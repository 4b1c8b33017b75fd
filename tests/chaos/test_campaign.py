"""Many faults at random moments: the required figures for kills and chaos, in a nightly run."""

import pytest

from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess
from .campaign import Campaign, prepare, run

pytestmark = [
    pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model"),
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
]


def check(campaign: Campaign, folder) -> None:
    prepare(folder)
    server = ServerProcess(folder, *campaign.options)
    try:
        ledger = run(campaign, server)
        print(f"{campaign.command_line}\n{ledger.report()}")
        assert not ledger.wrong, campaign.command_line
        assert not ledger.lost, campaign.command_line
        breaks = any("frontend" in fault.kind for fault in ledger.faults)
        assert breaks or not ledger.broken, campaign.command_line
        assert ledger.faults
        assert ledger.completed
        assert all(ledger.features.values()), ledger.features
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["worker:SIGKILL", "engine-core:SIGKILL"])
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_64_streams_survive_dozens_of_kills_at_random_moments(tmp_path, kind, tensor_parallel_size):
    check(Campaign(len(kind), 240, 5.0, 64, (kind,), tensor_parallel_size), tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_ten_minutes_of_random_faults_change_no_stream(tmp_path, seed):
    check(Campaign(seed, 600, 15.0), tmp_path)
