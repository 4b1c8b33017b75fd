"""A worker with too little memory for its model, in the epoch that CRAMPED_EPOCH names."""

import os
import resource
from pathlib import Path

from paged_serve.workers.process import rank
from paged_serve.workers.process.worker_process import main

ROOM_BYTES = 1 << 20

load = rank.Rank.load


def load_in_little_memory(config, index, rendezvous, on_progress):
    if rendezvous.endswith(f"rendezvous-{os.environ['CRAMPED_EPOCH']}"):
        rank.load_model = load_model_in_little_memory
    return load(config, index, rendezvous, on_progress)


def load_model_in_little_memory(*inputs):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))
    return load_model(*inputs)


load_model = rank.load_model
rank.Rank.load = load_in_little_memory
main()
