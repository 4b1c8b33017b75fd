"""What an operator may open to web pages, and to proxies in front of the server."""

from .setting import Setting

_GROUP = "Browsers and proxies"

WEB_SETTINGS = (
    Setting(
        _GROUP,
        "server.allowed_origins",
        ("--allowed-origins",),
        "Origins whose web pages may use the server, like https://app.example; * is any; default: its own alone.",
        "ORIGIN",
        is_list=True,
        expected="must be *, null, or an origin like https://app.example:8443: a scheme and a host, no path behind",
    ),
    Setting(
        _GROUP,
        "server.allowed_methods",
        ("--allowed-methods",),
        "Methods that these pages may use.",
        "METHOD",
        is_list=True,
        expected="must be * or a method like POST",
    ),
    Setting(
        _GROUP,
        "server.allowed_headers",
        ("--allowed-headers",),
        "Headers that these pages may send.",
        "HEADER",
        is_list=True,
        expected="must be * or the name of a header like Authorization",
    ),
    Setting(
        _GROUP,
        "server.allow_credentials",
        ("--allow-credentials",),
        "These pages may send cookies, for a proxy that reads them.",
    ),
    Setting(
        _GROUP,
        "server.allowed_hosts",
        ("--allowed-hosts",),
        "Names beside localhost that requests may be for (Host), like llm.example or *.example; * is any; default: "
        "without a key none, with one any.",
        "HOST",
        is_list=True,
        expected="must be *, or a name like llm.example or *.example, without a port",
    ),
    Setting(
        _GROUP,
        "server.root_path",
        ("--root-path",),
        "Path under which a proxy serves this server, like /llm; requests may come with it or without.",
        "PATH",
        expected="must be a path like /llm: a slash before, none behind, and not one of the server's own routes",
    ),
)
