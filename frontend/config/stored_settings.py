"""Settings of stored responses: whether they are stored, where, and how many."""

from .setting import Setting

_GROUP = "Stored responses"

STORED_SETTINGS = (
    Setting(
        _GROUP,
        "server.store_responses",
        ("--store-responses",),
        "Store responses of /v1/responses in this folder, across restarts; default: none are stored.",
        "FOLDER",
    ),
    Setting(
        _GROUP,
        "server.stored_responses_bytes",
        ("--stored-responses-bytes",),
        "Total size of stored responses, like 1G; beyond it the oldest of the key that holds the most are deleted.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.stored_responses_days",
        ("--stored-responses-days",),
        "How long a response is stored.",
        "DAYS",
    ),
)
