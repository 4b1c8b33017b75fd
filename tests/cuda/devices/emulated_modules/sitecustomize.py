"""On the import path of a server under test, so that its workers use an emulated CUDA device."""

import sys

if {"paged_serve.workers.process", "paged_serve.workers.process.standby"} & set(sys.orig_argv):
    from tests.cuda.devices.emulated_worker import install

    install()
