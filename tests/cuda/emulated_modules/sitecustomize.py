"""On the import path of a server under test: its workers find an emulated CUDA device."""

import sys

if {"paged_serve.workers", "paged_serve.workers.spare"} & set(sys.orig_argv):
    from tests.cuda.emulated_worker import install

    install()
