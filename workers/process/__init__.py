"""The worker's process: one rank, the standby worker, what this machine computes with. Open worker_process.py first."""
