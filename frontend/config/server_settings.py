"""Where the server listens, which clients it serves, what it holds for them, and what it does about lost processes."""

from .setting import Setting

_GROUP = "Server"

SERVER_SETTINGS = (
    Setting(_GROUP, "server.host", ("--host",), "Address to listen on; a public one needs an API key.", "HOST"),
    Setting(_GROUP, "server.port", ("--port",), "Port to listen on; 0 takes a free one.", "PORT"),
    Setting(_GROUP, "server.uds", ("--uds",), "Listen on a unix socket instead.", "PATH"),
    Setting(
        _GROUP,
        "server.api_keys",
        ("--api-key",),
        "Key that requests must carry; repeatable. Better set in the environment: `ps` shows arguments.",
        "KEY",
        "VLLM_API_KEY",
    ),
    Setting(
        _GROUP,
        "server.api_key_weights",
        ("--api-key-weight",),
        "Share of a key's requests beside others'; repeatable, in the order of the keys. Without: 1.",
        "N",
    ),
    Setting(_GROUP, "server.num_frontends", ("--api-server-count",), "HTTP processes.", "N"),
    Setting(
        _GROUP,
        "server.client_address",
        ("--client-address",),
        "Also take client libraries of other hosts, at tcp://ADDRESS:PORT.",
        "ADDRESS",
    ),
    Setting(
        _GROUP,
        "server.client_server_key",
        ("--client-server-key",),
        "The server's secret key for them, from `paged-serve keygen`.",
        "FILE",
    ),
    Setting(
        _GROUP,
        "server.client_keys",
        ("--client-keys",),
        "Folder with the public keys (*.key) of the clients that may connect.",
        "FOLDER",
    ),
    Setting(
        _GROUP,
        "server.max_connections",
        ("--max-connections",),
        "Connections of each HTTP process; default: what the limit on open files allows, up to 65,536.",
        "N",
    ),
    Setting(
        _GROUP,
        "server.max_buffered_bytes",
        ("--max-buffered-bytes",),
        "What each HTTP process holds for its clients, like 256M; what needs more is refused with 429.",
        "BYTES",
    ),
    Setting(_GROUP, "server.max_logprobs", ("--max-logprobs",), "Most logprobs a request may ask for.", "N"),
    Setting(
        _GROUP,
        "server.sse_keep_alive_interval_s",
        ("--sse-keep-alive-interval",),
        "A comment in streams that were silent for so long; 0 is none.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.resume_grace_s",
        ("--resume-grace",),
        "An answer with an Idempotency-Key goes on for so long after its connection broke, and is kept; 0 is not.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.resume_bytes_per_answer",
        ("--resume-bytes-per-answer",),
        "What is kept of one answer, like 4M.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.resume_bytes",
        ("--resume-bytes",),
        "What each HTTP process keeps of all answers, like 64M.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.admin_port",
        ("--admin-port",),
        "Serve /metrics and the operator's routes on this port of 127.0.0.1 too; 0 takes a free one.",
        "PORT",
    ),
    Setting(_GROUP, "server.public_metrics", ("--public-metrics",), "Serve /metrics on the public port, too."),
    Setting(
        _GROUP, "server.metrics_compat", ("--metrics-compat",), "Also export metrics under another server's names."
    ),
    Setting(
        _GROUP,
        "server.drain_timeout_s",
        ("--drain-timeout", "--shutdown-timeout"),
        "How long a stop waits for running requests.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.max_restarts",
        ("--max-restarts",),
        "Lost processes are replaced so often within --restart-window; the next loss ends the server.",
        "N",
    ),
    Setting(
        _GROUP,
        "server.restart_window_s",
        ("--restart-window",),
        "The time in which --max-restarts are counted.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.dump_dir",
        ("--dump-dir",),
        "Reports of lost processes are left there, in paged-serve/dumps; none: nowhere; default: ~/.local/state.",
        "FOLDER",
        "XDG_STATE_HOME",
    ),
    Setting(_GROUP, "server.wake_supervisor", ("--wake-supervisor",), "Continue a supervisor that SIGSTOP has halted."),
    Setting(_GROUP, "server.lenient", ("--lenient",), "Unknown request fields are warnings, not errors."),
    Setting(
        _GROUP, "server.access_log", ("--access-log",), "Log a line a request.", off_flags=("--disable-access-log",)
    ),
    Setting(_GROUP, "server.log_level", ("--log-level",), "The least important line that is logged."),
)
