"""How byte-level tokenizers divide a text before merging, by the name in `tokenizer.ggml.pre`.

The expressions are those of the models' tokenizer.json files; the names those of llama.cpp (llama-vocab.cpp).
"""

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str, marks: str = "", contractions: str = f"{_CONTRACTIONS}|", spaces: str = _SPACES) -> str:
    """`marks`: kinds of characters that belong to words besides letters."""
    word, other = rf"[\p{{L}}{marks}]+", rf"[^\s\p{{L}}{marks}\p{{N}}]+"
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?{word}|{digits}| ?{other}[\r\n]*|{spaces}"


def _cased_words(after: str, digits: str) -> str:
    """Words are divided where a small letter is followed by a capital."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{upper}*{lower}+{after}|{start}{upper}+{lower}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`splits`: the expressions, one after another; empty: GPT-2's own, which the library has."""

    splits: tuple[str, ...] = ()
    single_digits: bool = False  # after these, before GPT-2's expression
    composes: bool = False  # texts are composed first (Unicode's NFC)
    ignores_merges: bool = False  # a word that is a token is not merged from its parts
    adds_bos: bool = False  # if the file does not say
    groups_digits: bool = False  # Falcon: punctuation is divided off first, digits last and three by three

    def normalizer(self) -> dict[str, Any] | None:
        """As in tokenizer.json."""
        return {"type": "NFC"} if self.composes else None

    def pre_tokenizer(self) -> dict[str, Any]:
        """As in tokenizer.json."""
        steps: list[dict[str, Any]] = [_split(split) for split in self.splits]
        if self.groups_digits:
            steps.append({"type": "Punctuation", "behavior": "Contiguous"})
        if self.single_digits:
            steps.append({"type": "Digits", "individual_digits": True})
        steps.append(
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not self.splits}
        )
        if self.groups_digits:
            steps += [{"type": "Digits", "individual_digits": False}, _split("[0-9][0-9][0-9]")]
        return {"type": "Sequence", "pretokenizers": steps}


def _split(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _kimi() -> str:
    """Chinese characters apart, then words as in `_cased_words`."""
    upper, lower = (
        rf"[{kinds}&&[^\p{{Han}}]]" for kinds in (r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}")
    )
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{upper}*{lower}+{_CONTRACTIONS}?|{start}{upper}+{lower}*{_CONTRACTIONS}?"
    return rf"[\p{{Han}}]+|{words}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


_LETTERS = (  # of DeepSeek-LLM: those that have cases, and a few others
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b"
    "\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK)
_MARKS = r"""!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~"""
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_MARKED_WORDS = rf"[{_MARKS}][A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"
_DEEPSEEK_V3 = (r"\p{N}{1,3}", _HAN_KANA, rf"{_MARKED_WORDS}[\r\n]*|{_SPACES}")
_THREES = r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*(?!\p{Nd}))"  # counted from the right
_AFMOE_SCRIPTS = (  # Chinese and Japanese, Thai, Lao, Khmer, Burmese, Korean
    "[\u4e00-\u9fff\u3040-\u309f\u30a0-\u30ff\u3400-\u4dbf\uf900-\ufaff\uff65-\uff9f\u2f00-\u2fdf]+|[\u0e00-\u0e7f]+"
    "|[\u0e80-\u0eff]+|[\u1780-\u17ff]+|[\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff]+|[\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_SCRIPTS = (  # Korean, full-width punctuation, Bopomofo, Chinese and Japanese
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_HAN_KANA}"
)
_LING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_HALVES = r"\s*[\r\n]+|" + "|".join(rf"\s{{{2**power}}}(?!\S)" for power in range(9, 1, -1))  # of spaces, in Jais 2
_BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
_SEED = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignores_merges=True, adds_bos=True)
_THREE_DIGITS = PreTokenizer((_words(r"\p{N}{1,3}"),))
_PHRASES = (  # of K-EXAONE: words with single spaces between them stay together
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_GPT4O = _cased_words(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_ONE_DIGIT = _words(r"\p{N}")
_GPT2, _DIGITS, _OLMO = PreTokenizer(), PreTokenizer(single_digits=True), PreTokenizer(composes=True)
PRE_TOKENIZERS = {  # all of llama.cpp that merge bytes
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("midm-2.0", "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _THREE_DIGITS),
    "jais-2": PreTokenizer((_words(r"\p{N}{1,3}", spaces=rf"{_HALVES}|\s{{1,2}}(?!\S)|\s"),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _words(r"\p{N}+")), ignores_merges=True),
    **dict.fromkeys(("qwen2", "hunyuan", "f2llmv2"), PreTokenizer((_ONE_DIGIT,), composes=True)),
    "qwen35": PreTokenizer((_words(r"\p{N}", r"\p{M}"),), composes=True),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "megrez", "solar-open", "grok-2"), PreTokenizer((_ONE_DIGIT,))),
    "laguna": PreTokenizer((r"[^\n]+|\n+", _ONE_DIGIT)),
    "ufakzeka": PreTokenizer((_words(r"\p{N}", contractions=""),)),
    "tekken": PreTokenizer((_cased_words("", r"\p{N}"),), ignores_merges=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2", "talkie"), PreTokenizer((_GPT4O,))),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), ignores_merges=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _cased_words(f"{_CONTRACTIONS}?", r"\p{N}")), ignores_merges=True),
    "exaone-moe": PreTokenizer((_PHRASES,)),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_words(r"\p{N}{1,3}"),), ignores_merges=True)),
    "stablelm2": PreTokenizer((_ONE_DIGIT,), composes=True),
    "seed-coder": PreTokenizer((_SEED,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((_LING,))),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM, single_digits=True),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER, single_digits=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), PreTokenizer(_DEEPSEEK_V3)),
    "spark2_5": PreTokenizer((r"\p{N}", _HAN_KANA, rf"{_MARKED_WORDS}|[\r\n]|\s+(?!\S)|\s+")),
    "afmoe": PreTokenizer((_THREES, _AFMOE_SCRIPTS, rf"{_MARKED_WORDS}[\r\n]*|{_SPACES}")),
    "kimi-k2": PreTokenizer((_kimi(),), ignores_merges=True),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "trillion"), _GPT2),
    **dict.fromkeys(("granite-docling", "jais", "jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es"), _GPT2),
    **dict.fromkeys(("jina-de", "jina-es"), _GPT2),
    **dict.fromkeys(("olmo", "mpt", "modern-bert"), _OLMO),
    **dict.fromkeys(("refact", "smollm", "starcoder", "exaone", "codeshell", "minerva-7b", "mellum2"), _DIGITS),
    "falcon": PreTokenizer(groups_digits=True),
    "command-r": PreTokenizer(single_digits=True, composes=True),
}
