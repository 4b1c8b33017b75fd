"""The banner that a server prints when it is ready."""

import logging
import shlex
from collections.abc import Mapping

from paged_serve.protocol.messages.config import Config

log = logging.getLogger(__name__)


def banner(
    config: Config, facts: Mapping[str, str], url: str, run_dir: str, *, is_demo: bool, colour: bool = False
) -> str:
    """One box: what runs and where, what makes it slow, and a curl command to copy."""
    rows = [row for row in banner_rows(config, facts, url, run_dir, is_demo=is_demo) if row[0] not in ("slow", "fix")]
    label_width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{label_width}}  {value}" for label, value in rows]
    width = max(map(len, lines))
    box = [f"│ {line:<{width}} │" for line in lines]
    title = " paged-serve is ready "
    top = "╭─" + title + "─" * max(0, width + 1 - len(title)) + "╮"
    bottom = "╰" + "─" * (width + 2) + "╯"
    return "\n".join(
        [
            top,
            *box,
            bottom,
            *slow_lines(facts, colour=colour),
            "try: " + curl_line(config, config.model.served_model_names[0], url, facts),
        ]
    )


def banner_rows(
    config: Config, facts: Mapping[str, str], url: str, run_dir: str, *, is_demo: bool
) -> list[tuple[str, str]]:
    """The rows of the banner, what runs and where: (label, text)."""
    rows = [("model", f"{config.model.served_model_names[0]}  ({config.model.model})")]
    rows += fact_rows(config, facts)
    rows += [("http", url), ("admin", facts.get("admin", "?")), ("run directory", run_dir)]
    if "slow" in facts:
        rows += [("slow", facts["slow"]), ("fix", facts["remedy"])]
    return [*rows, ("note", "demo model: not a useful assistant")] if is_demo else rows


def slow_lines(facts: Mapping[str, str], *, colour: bool) -> list[str]:
    """Why no kernel is used, what that costs, and the one command that fixes it; empty if kernels are used."""
    if "slow" not in facts:
        return []
    red, plain = ("\033[31m", "\033[0m") if colour else ("", "")
    return [f"{red}slow: {facts['slow']}{plain}", f"{red}fix: {facts['remedy']}{plain}"]


def fact_rows(config: Config, facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rows of facts that the engine has reported; "?" for a missing one."""
    fact = {name: facts.get(name, "?") for name in ("device", "dtype", "kv_blocks", "block_size", "kv_tokens")}
    ranks = config.parallel.tensor_parallel_size
    coded = "" if config.cache.kv_cache_dtype == "auto" else f", {config.cache.kv_cache_dtype}"
    num_states, _, num_groups = facts.get("state_groups", "0 of 1").partition(" of ")
    states = "" if num_states == "0" else ", states included" if num_states != num_groups else ", all of them states"
    quantization = [("quantization", facts["quantization"])] if "quantization" in facts else []
    remote = [("remote clients", facts["remote clients"])] if "remote clients" in facts else []
    return [
        ("runs on", f"{fact['device']}, {fact['dtype']}, {ranks} rank{'s' if ranks > 1 else ''}{_path(facts)}"),
        *quantization,
        (
            "KV cache",
            f"{fact['kv_tokens']} tokens in {fact['kv_blocks']} blocks of {fact['block_size']}{states}{coded}",
        ),
        ("context", f"{facts.get('max_model_len', '?')} tokens, prompt and output"),
        *_chats(facts),
        *remote,
    ]


def _chats(facts: Mapping[str, str]) -> list[tuple[str, str]]:
    """The formats of chat outputs, which only HTTP servers parse; for a pooling model, its tasks."""
    if not _generates(facts):
        return [("tasks", facts["tasks"])]
    if "chat template" not in facts:
        return []
    if facts["chat template"] == "none":
        return [("chats", "none: the model has no chat template")]
    return [("chats", f"tool calls: {facts['tool calls']}, reasoning: {facts['reasoning']}")]


def _path(facts: Mapping[str, str]) -> str:
    """The CPU kernels, their order of summation, and the threads per rank."""
    if facts.get("device") != "cpu" or "kernels" not in facts:
        return ""
    name = facts["kernels"] if facts["kernels"] == "torch" else f"{facts['kernels']} kernels"
    order = f" in {facts['summation']} order" if "summation" in facts else ""
    return f", {name}{order} on {facts['threads']} thread{'' if facts['threads'] == '1' else 's'}"


def _generates(facts: Mapping[str, str]) -> bool:
    return "generate" in facts.get("tasks", "generate").split(", ")


def _example(model: str, facts: Mapping[str, str]) -> tuple[str, str]:
    """Path and body of an example request for the model's task."""
    if _generates(facts):
        return "/v1/completions", f'{{"model": "{model}", "prompt": "The capital of France is", "max_tokens": 16}}'
    paths = {"embed": "/v1/embeddings", "classify": "/classify"}
    path = next((paths[task] for task in facts["tasks"].split(", ") if task in paths), "/pooling")
    return path, f'{{"model": "{model}", "input": "The capital of France"}}'


def curl_line(config: Config, model: str, url: str, facts: Mapping[str, str]) -> str:
    """A curl command to copy and paste."""
    path, body = _example(model, facts)
    address = ["--unix-socket", config.server.uds, f"http://localhost{path}"]
    if not config.server.uds:
        address = [f"{url}{path}"]
    key = ["-H", "Authorization: Bearer $PAGED_SERVE_API_KEY"] if config.server.api_keys else []
    words = ["curl", *address, "-H", "Content-Type: application/json"]
    quoted = " ".join(shlex.quote(word) for word in words)
    header = f' {key[0]} "{key[1]}"' if key else ""
    return f"{quoted}{header} -d {shlex.quote(body)}"
