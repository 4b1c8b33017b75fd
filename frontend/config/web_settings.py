"""Settings for web pages of other origins, and for proxies in front of the server."""

from .setting import Setting

_GROUP = "Browsers and proxies"

WEB_SETTINGS = (
    Setting(
        _GROUP,
        "server.allowed_origins",
        ("--allowed-origins",),
        "Origins whose web pages may use the server, like https://app.example; * is any; default: only its own.",
        "ORIGIN",
        is_list=True,
        expected="must be *, null, or an origin like https://app.example:8443: a scheme and a host, without a path",
    ),
    Setting(
        _GROUP,
        "server.allowed_methods",
        ("--allowed-methods",),
        "Methods that pages of these origins may use; * is any.",
        "METHOD",
        is_list=True,
        expected="must be * or a method like POST",
    ),
    Setting(
        _GROUP,
        "server.allowed_headers",
        ("--allowed-headers",),
        "Headers that pages of these origins may send; * is any.",
        "HEADER",
        is_list=True,
        expected="must be * or the name of a header like Authorization",
    ),
    Setting(
        _GROUP,
        "server.allow_credentials",
        ("--allow-credentials",),
        "Let pages of these origins send cookies, for a proxy that reads them.",
    ),
    Setting(
        _GROUP,
        "server.allowed_hosts",
        ("--allowed-hosts",),
        "Host names that requests may name besides localhost, like llm.example or *.example; * is any; default: "
        "any with an API key, none without.",
        "HOST",
        is_list=True,
        expected="must be *, or a name like llm.example or *.example, without a port",
    ),
    Setting(
        _GROUP,
        "server.root_path",
        ("--root-path",),
        "Path under which a proxy serves this server, like /llm; requests may arrive with or without it.",
        "PATH",
        expected="must be a path like /llm: a leading slash, no trailing one, and not one of the server's own routes",
    ),
)
