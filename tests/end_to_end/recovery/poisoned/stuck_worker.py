"""A worker whose model never arrives, as on a network file system without its server, in the epoch STUCK_EPOCH."""

import os

from paged_serve.workers.process import rank
from paged_serve.workers.process.worker_process import main

load = rank.Rank.load


def load_or_hang(config, index, rendezvous, on_progress):
    if rendezvous.endswith(f"rendezvous-{os.environ['STUCK_EPOCH']}"):
        reader, _writer = os.pipe()
        on_progress(1, 2)
        os.read(reader, 1)
    return load(config, index, rendezvous, on_progress)


rank.Rank.load = load_or_hang
main()
