"""The worker's process: one rank, the standby worker, the report on this machine. Open worker_process.py first."""
