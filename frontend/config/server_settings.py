"""Settings of the server: its addresses, its clients, the memory it holds for them, and the loss of processes."""

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
        "Key that requests must carry; repeatable. Safer in the environment: `ps` shows arguments.",
        "KEY",
        "VLLM_API_KEY",
    ),
    Setting(
        _GROUP,
        "server.api_key_weights",
        ("--api-key-weight",),
        "Weight of a key's requests against those of other keys; repeatable, in the order of the keys; default: 1.",
        "N",
    ),
    Setting(_GROUP, "server.num_frontends", ("--api-server-count",), "HTTP processes.", "N"),
    Setting(
        _GROUP,
        "server.client_address",
        ("--client-address",),
        "Also accept client libraries on other hosts, at tcp://ADDRESS:PORT.",
        "ADDRESS",
    ),
    Setting(
        _GROUP,
        "server.client_server_key",
        ("--client-server-key",),
        "The server's secret key for --client-address, from `paged-serve keygen`.",
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
        "Connections per HTTP process; default: as the limit on open files allows, up to 65,536.",
        "N",
    ),
    Setting(
        _GROUP,
        "server.max_buffered_bytes",
        ("--max-buffered-bytes",),
        "Memory that each HTTP process holds for its clients, like 256M; requests beyond it are refused with 429.",
        "BYTES",
    ),
    Setting(_GROUP, "server.max_logprobs", ("--max-logprobs",), "Most logprobs a request may ask for.", "N"),
    Setting(
        _GROUP,
        "server.sse_keep_alive_interval_s",
        ("--sse-keep-alive-interval",),
        "Send a comment in streams that have been silent this long; 0: never.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.resume_grace_s",
        ("--resume-grace",),
        "How long an answer with an Idempotency-Key continues and is kept after its connection broke; 0: not at all.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.resume_bytes_per_answer",
        ("--resume-bytes-per-answer",),
        "Bytes kept of one answer, like 4M.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.resume_bytes",
        ("--resume-bytes",),
        "Bytes that each HTTP process keeps of all answers, like 64M.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.admin_port",
        ("--admin-port",),
        "Also serve /metrics and the operator's routes on this port of 127.0.0.1; 0 takes a free one.",
        "PORT",
    ),
    Setting(_GROUP, "server.public_metrics", ("--public-metrics",), "Serve /metrics on the public port too."),
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
        "How many lost processes are replaced within --restart-window; one more loss ends the server.",
        "N",
    ),
    Setting(
        _GROUP,
        "server.restart_window_s",
        ("--restart-window",),
        "The time over which --max-restarts is counted.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.dump_dir",
        ("--dump-dir",),
        "Folder for reports of lost processes, in paged-serve/dumps; none: no reports; default: ~/.local/state.",
        "FOLDER",
        "XDG_STATE_HOME",
    ),
    Setting(_GROUP, "server.wake_supervisor", ("--wake-supervisor",), "Continue a supervisor that SIGSTOP has halted."),
    Setting(_GROUP, "server.lenient", ("--lenient",), "Unknown request fields are warnings, not errors."),
    Setting(
        _GROUP, "server.access_log", ("--access-log",), "Log one line per request.", off_flags=("--disable-access-log",)
    ),
    Setting(_GROUP, "server.log_level", ("--log-level",), "The lowest level that is logged."),
)
