"""Settings of the server: its addresses, its clients, the memory it holds for them, the loss of
processes, the responses that it stores, and web pages; and of conversations, among the options of the model.
"""

from .setting import Setting

_GROUP = "Server"
_STORED = "Stored responses"
_WEB = "Browsers and proxies"

CONVERSATION_SETTINGS = (
    Setting(
        "Model",
        "server.chat_template",
        ("--chat-template",),
        "Jinja file to use instead of the model's template.",
        "FILE",
    ),
    Setting(
        "Model",
        "server.default_chat_template_kwargs",
        ("--default-chat-template-kwargs",),
        'JSON object of values that the chat template gets unless a request gives others: {"enable_thinking": false}.',
        "JSON",
    ),
    Setting(
        "Model",
        "server.tool_call_parser",
        ("--tool-call-parser",),
        "Format of tool calls; auto: that of the chat template; none: they stay text.",
        "FORMAT",
    ),
    Setting(
        "Model",
        "server.reasoning_parser",
        ("--reasoning-parser",),
        "Format of reasoning; auto: that of the chat template; none: it stays in the content.",
        "FORMAT",
    ),
    Setting(
        "Model",
        "server.allow_special_tokens",
        ("--allow-special-tokens",),
        "Whether text in requests may spell special tokens like <|im_end|>; default: in prompts, not in conversations.",
    ),
)
SERVER_SETTINGS = (
    Setting(
        _GROUP,
        "server.host",
        ("--host",),
        "Address to listen on; any but a loopback address requires an API key.",
        "HOST",
    ),
    Setting(_GROUP, "server.port", ("--port",), "Port to listen on; 0: any free one.", "PORT"),
    Setting(_GROUP, "server.uds", ("--uds",), "Path of a unix socket to listen on instead.", "PATH"),
    Setting(
        _GROUP,
        "server.api_keys",
        ("--api-key",),
        "Key that requests must carry; repeatable. Safer in the environment, as `ps` shows arguments.",
        "KEY",
        "VLLM_API_KEY",
        expected="must be visible ASCII characters without spaces, at least one and at most 4096",
    ),
    Setting(
        _GROUP,
        "server.api_key_weights",
        ("--api-key-weight",),
        "Weight of a key's requests against those of other keys; repeatable, in the order of the keys; default: 1.",
        "N",
    ),
    Setting(_GROUP, "server.num_frontends", ("--api-server-count",), "Number of HTTP processes.", "N"),
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
        "Most connections per HTTP process; default: as many as the limit on open files allows, up to 65,536.",
        "N",
    ),
    Setting(
        _GROUP,
        "server.max_buffered_bytes",
        ("--max-buffered-bytes",),
        "Most memory that each HTTP process holds for its clients; requests beyond it are refused with 429.",
        "BYTES",
    ),
    Setting(
        _GROUP, "server.max_logprobs", ("--max-logprobs",), "Most logprobs per token that a request may ask for.", "N"
    ),
    Setting(
        _GROUP,
        "server.sse_keep_alive_interval_s",
        ("--sse-keep-alive-interval",),
        "Send a comment in a stream that has been silent for this long; 0: never.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.resume_grace_s",
        ("--resume-grace",),
        "How long an answer with an Idempotency-Key continues and is kept after its connection breaks; 0: not at all.",
        "SECONDS",
    ),
    Setting(
        _GROUP,
        "server.resume_bytes_per_answer",
        ("--resume-bytes-per-answer",),
        "Most bytes kept of one answer with an Idempotency-Key.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.resume_bytes",
        ("--resume-bytes",),
        "Most bytes that each HTTP process keeps of all such answers.",
        "BYTES",
    ),
    Setting(
        _GROUP,
        "server.admin_port",
        ("--admin-port",),
        "Also serve /metrics and the operator's routes on this port of 127.0.0.1; 0: any free one.",
        "PORT",
    ),
    Setting(_GROUP, "server.public_metrics", ("--public-metrics",), "Serve /metrics on the public port, too."),
    Setting(_GROUP, "server.metrics_compat", ("--metrics-compat",), "Export metrics under this server's names, too."),
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
        "Folder for reports of lost processes, in paged-serve/dumps; 'none': no reports; default: ~/.local/state.",
        "FOLDER",
        "XDG_STATE_HOME",
    ),
    Setting(_GROUP, "server.wake_supervisor", ("--wake-supervisor",), "Continue a supervisor that SIGSTOP has halted."),
    Setting(_GROUP, "server.lenient", ("--lenient",), "Answer unknown request fields with warnings instead of errors."),
    Setting(
        _GROUP,
        "server.access_log",
        ("--access-log",),
        "Log one line per request.",
        off_flags=("--disable-access-log", "--disable-uvicorn-access-log"),
    ),
    Setting(_GROUP, "server.log_level", ("--log-level",), "Lowest level that is logged."),
    Setting(
        _STORED,
        "server.store_responses",
        ("--store-responses",),
        "Folder that keeps responses of /v1/responses across restarts; default: none are stored.",
        "FOLDER",
    ),
    Setting(
        _STORED,
        "server.stored_responses_bytes",
        ("--stored-responses-bytes",),
        "Most bytes of stored responses; beyond it, the oldest of the key that holds the most are deleted.",
        "BYTES",
    ),
    Setting(
        _STORED,
        "server.stored_responses_days",
        ("--stored-responses-days",),
        "How long a response is stored.",
        "DAYS",
    ),
)

WEB_SETTINGS = (
    Setting(
        _WEB,
        "server.allowed_origins",
        ("--allowed-origins",),
        "Origins whose web pages may use the server, like https://app.example; * is any; default: only its own.",
        "ORIGIN",
        is_list=True,
        expected="must be *, null, or an origin like https://app.example:8443: a scheme and a host, without a path",
    ),
    Setting(
        _WEB,
        "server.allowed_methods",
        ("--allowed-methods",),
        "Methods that pages of these origins may use; * is any.",
        "METHOD",
        is_list=True,
        expected="must be * or a method like POST",
    ),
    Setting(
        _WEB,
        "server.allowed_headers",
        ("--allowed-headers",),
        "Headers that pages of these origins may send; * is any.",
        "HEADER",
        is_list=True,
        expected="must be * or the name of a header like Authorization",
    ),
    Setting(
        _WEB,
        "server.allow_credentials",
        ("--allow-credentials",),
        "Let pages of these origins send cookies, for a proxy that reads them.",
    ),
    Setting(
        _WEB,
        "server.allowed_hosts",
        ("--allowed-hosts",),
        "Host names that requests may name besides localhost, like llm.example or *.example; * is any; default: "
        "any with an API key, none without.",
        "HOST",
        is_list=True,
        expected="must be *, or a name like llm.example or *.example, without a port",
    ),
    Setting(
        _WEB,
        "server.root_path",
        ("--root-path",),
        "Path under which a proxy serves this server, like /llm; requests may arrive with or without it.",
        "PATH",
        expected="must be a path like /llm: a leading slash, no trailing one, and not one of the server's own routes",
    ),
)
