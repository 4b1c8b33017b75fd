"""Whether responses are stored, where, and how many."""

from .setting import Setting

_GROUP = "Stored responses"

STORED_SETTINGS = (
    Setting(
        _GROUP,
        "server.store_responses",
        ("--store-responses",),
        "Store responses of /v1/responses in this folder, which outlives the server; default: none are stored.",
        "FOLDER",
    ),
    Setting(
        _GROUP,
        "server.stored_responses_bytes",
        ("--stored-responses-bytes",),
        "What they take together, like 1G; the oldest of the key with the most go first.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.stored_responses_days",
        ("--stored-responses-days",),
        "How long each is stored.",
        "DAYS",
    ),
)
