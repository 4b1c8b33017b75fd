"""Settings of the server: its addresses, its clients, the memory it holds for them, the loss of
processes, the responses that it stores, and web pages; and of conversations, among the options of the model.
"""

from .setting import Setting, in_group

CONVERSATION_SETTINGS = in_group(
    "Model",
    Setting("server.chat_template", "Jinja file to use instead of the model's template.", "FILE"),
    Setting(
        "server.default_chat_template_kwargs",
        'JSON object of values that the chat template gets unless a request gives others: {"enable_thinking": false}.',
        "JSON",
    ),
    Setting(
        "server.tool_call_parser",
        "Format of tool calls; auto: that of the chat template; none: they stay text.",
        "FORMAT",
    ),
    Setting(
        "server.reasoning_parser",
        "Format of reasoning; auto: that of the chat template; none: it stays in the content.",
        "FORMAT",
    ),
    Setting(
        "server.allow_special_tokens",
        "Whether text in requests may spell special tokens like <|im_end|>; default: in prompts, not in conversations.",
    ),
)
SERVER_SETTINGS = in_group(
    "Server",
    Setting("server.host", "Address to listen on; any but a loopback address requires an API key.", "HOST"),
    Setting("server.port", "Port to listen on; 0: any free one.", "PORT"),
    Setting("server.uds", "Path of a unix socket to listen on instead.", "PATH"),
    Setting(
        "server.api_keys",
        "Key that requests must carry; repeatable. Safer in the environment, as `ps` shows arguments.",
        "KEY",
        flags=("--api-key",),
        extra_environment="VLLM_API_KEY",
        expected="must be visible ASCII characters without spaces, at least one and at most 4096",
    ),
    Setting(
        "server.api_key_weights",
        "Weight of a key's requests against those of other keys; repeatable, in the order of the keys; default: 1.",
        "N",
        flags=("--api-key-weight",),
    ),
    Setting("server.num_frontends", "Number of HTTP processes.", "N", flags=("--api-server-count",)),
    Setting(
        "server.client_address",
        "Also accept client libraries on other hosts, at tcp://ADDRESS:PORT.",
        "ADDRESS",
    ),
    Setting(
        "server.client_server_key",
        "The server's secret key for --client-address, from `paged-serve keygen`.",
        "FILE",
    ),
    Setting("server.client_keys", "Folder with the public keys (*.key) of the clients that may connect.", "FOLDER"),
    Setting(
        "server.max_connections",
        "Most connections per HTTP process; default: as many as the limit on open files allows, up to 65,536.",
        "N",
    ),
    Setting(
        "server.max_buffered_bytes",
        "Most memory that each HTTP process holds for its clients; requests beyond it are refused with 429.",
        "BYTES",
    ),
    Setting("server.max_logprobs", "Most logprobs per token that a request may ask for.", "N"),
    Setting(
        "server.sse_keep_alive_interval_s",
        "Send a comment in a stream that has been silent for this long; 0: never.",
        "SECONDS",
        flags=("--sse-keep-alive-interval",),
    ),
    Setting(
        "server.resume_grace_s",
        "How long an answer with an Idempotency-Key continues and is kept after its connection breaks; 0: not at all.",
        "SECONDS",
        flags=("--resume-grace",),
    ),
    Setting("server.resume_bytes_per_answer", "Most bytes kept of one answer with an Idempotency-Key.", "BYTES"),
    Setting("server.resume_bytes", "Most bytes that each HTTP process keeps of all such answers.", "BYTES"),
    Setting(
        "server.admin_port",
        "Also serve /metrics and the operator's routes on this port of 127.0.0.1; 0: any free one.",
        "PORT",
    ),
    Setting("server.public_metrics", "Serve /metrics on the public port, too."),
    Setting("server.metrics_compat", "Export metrics under this server's names, too."),
    Setting(
        "server.drain_timeout_s",
        "How long a stop waits for running requests.",
        "SECONDS",
        flags=("--drain-timeout", "--shutdown-timeout"),
    ),
    Setting(
        "server.max_restarts",
        "How many lost processes are replaced within --restart-window; one more loss ends the server.",
        "N",
    ),
    Setting(
        "server.restart_window_s",
        "The time over which --max-restarts is counted.",
        "SECONDS",
        flags=("--restart-window",),
    ),
    Setting(
        "server.dump_dir",
        "Folder for reports of lost processes, in paged-serve/dumps; 'none': no reports; default: ~/.local/state.",
        "FOLDER",
        extra_environment="XDG_STATE_HOME",
    ),
    Setting("server.wake_supervisor", "Continue a supervisor that SIGSTOP has halted."),
    Setting("server.lenient", "Answer unknown request fields with warnings instead of errors."),
    Setting(
        "server.access_log",
        "Log one line per request.",
        off_flags=("--disable-access-log", "--disable-uvicorn-access-log"),
    ),
    Setting("server.log_level", "Lowest level that is logged."),
)
STORED_RESPONSES_SETTINGS = in_group(
    "Stored responses",
    Setting(
        "server.store_responses",
        "Folder that keeps responses of /v1/responses across restarts; default: none are stored.",
        "FOLDER",
    ),
    Setting(
        "server.stored_responses_bytes",
        "Most bytes of stored responses; beyond it, the oldest of the key that holds the most are deleted.",
        "BYTES",
    ),
    Setting("server.stored_responses_days", "How long a response is stored.", "DAYS"),
)

WEB_SETTINGS = in_group(
    "Browsers and proxies",
    Setting(
        "server.allowed_origins",
        "Origins whose web pages may use the server, like https://app.example; * is any; default: only its own.",
        "ORIGIN",
        is_list=True,
        expected="must be *, null, or an origin like https://app.example:8443: a scheme and a host, without a path",
    ),
    Setting(
        "server.allowed_methods",
        "Methods that pages of these origins may use; * is any.",
        "METHOD",
        is_list=True,
        expected="must be * or a method like POST",
    ),
    Setting(
        "server.allowed_headers",
        "Headers that pages of these origins may send; * is any.",
        "HEADER",
        is_list=True,
        expected="must be * or the name of a header like Authorization",
    ),
    Setting("server.allow_credentials", "Let pages of these origins send cookies, for a proxy that reads them."),
    Setting(
        "server.allowed_hosts",
        "Host names that requests may name besides localhost, like llm.example or *.example; * is any; default: "
        "any with an API key, none without.",
        "HOST",
        is_list=True,
        expected="must be *, or a name like llm.example or *.example, without a port",
    ),
    Setting(
        "server.root_path",
        "Path under which a proxy serves this server, like /llm; requests may arrive with or without it.",
        "PATH",
        expected="must be a path like /llm: a leading slash, no trailing one, and not one of the server's own routes",
    ),
)
