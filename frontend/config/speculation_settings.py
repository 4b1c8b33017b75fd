"""Settings of speculation: where drafts come from, and how many are made."""

from .setting import Setting, in_group

SPECULATION_SETTINGS = in_group(
    "Speculation",
    Setting(
        "speculation.method",
        "Source of drafts, from which one step computes several tokens of a row: the same bytes, sooner. ngram: the "
        "row's own text; suffix: earlier answers, too; draft or eagle3: the model or head in FOLDER; mtp: the "
        "checkpoint's own layer for multi-token prediction; auto: suffix on the CPU, off elsewhere.",
        "off|ngram|suffix|draft:FOLDER|eagle3:FOLDER|mtp|auto",
        flags=("--speculative",),
        expected="must be one of off, ngram, suffix, draft:FOLDER, eagle3:FOLDER, mtp, auto",
    ),
    Setting(
        "speculation.num_drafts",
        "Most drafts of a row in one step.",
        "N",
        flags=("--num-speculative-tokens",),
    ),
    Setting(
        "speculation.adaptive",
        "Make only as many drafts as save time, judged by measured steps; off: as many as allowed, in every step.",
        flags=("--speculative-adaptive",),
    ),
    Setting(
        "speculation.history_tokens",
        "Most tokens of earlier answers kept as a source of drafts, with suffix and auto. As with prefixes, an answer "
        "is used only for requests of the same API key and cache_salt.",
        "N",
        flags=("--speculative-history-tokens",),
    ),
    Setting(
        "speculation.draft_model",
        "Folder of the model or head for --speculative draft or eagle3; the same as draft:FOLDER or eagle3:FOLDER.",
        "FOLDER",
    ),
)
