"""Turns the form that a request requires into a grammar for llguidance: `lowered` writes it, `check` compiles it."""

import json
import re
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import MAX_GRAMMAR_CHARS, StructuredOutputsParams

from .grammar_builder import lark_string, regex_terminal
from .helper_messages import AddedTokens
from .json_schema.patterns import with_fixed_patterns
from .json_schema.rewriting import Rewriting, Unsupported
from .json_schema.schema_walk import Schema, children, pointer
from .structural_tag import structural_tag_grammar

MAX_ERROR_CHARS = 300
_READER = json.JSONDecoder()


class Lowered(msgspec.Struct):
    """A grammar's source (protocol Grammar), and warnings about parts that it does not enforce."""

    source: str
    warnings: list[str] = []


class _Bytes:
    """A tokenizer of single bytes and the added tokens: sufficient for compiling, and quick to create."""

    bos_token_id = None

    def __init__(self, added: AddedTokens):
        named = {**added.plain, **added.special}
        first_byte = max(named.values(), default=-1) + 1  # the added tokens have their own ids
        self.tokens = [b""] * first_byte + [bytes([i]) for i in range(256)] + [b"<end>"]
        for text, token in named.items():
            self.tokens[token] = text.encode()
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [*added.special.values(), self.eos_token_id]
        self._first_byte = first_byte

    def __call__(self, text: str | bytes) -> list[int]:
        return [self._first_byte + byte for byte in (text.encode() if isinstance(text, str) else text)]


def bytes_tokenizer(added: AddedTokens) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes(added)), slices=[])


def lowered(params: StructuredOutputsParams, added: AddedTokens | None = None) -> Lowered:
    """The grammar of a required form; `added`: the model's added tokens, used for tags. Raises InvalidRequest."""
    if params.json is not None or params.json_object is not None:
        return _json(params)
    if params.regex is not None:
        return _of({"lark_grammar": f"start: {regex_terminal(params.regex)}"})
    if params.choice is not None:
        return _of({"lark_grammar": "start: " + " | ".join(map(lark_string, params.choice))})
    if params.structural_tag is not None:
        grammar, warnings = structural_tag_grammar(params.structural_tag, added or AddedTokens())
        return Lowered(_source({"lark_grammar": grammar}), warnings)
    return _of({"lark_grammar": _with_fixed_schemas(_lark(params.grammar or ""))})


def check(source: str, tokenizer: LLTokenizer) -> None:
    """Compile a grammar. Raises InvalidRequest with llguidance's error and, for a JSON schema, its position."""
    if not (error := _error(source, tokenizer)):
        return
    grammars = json.loads(source)["grammars"]
    schema = grammars[0].get("json_schema") if len(grammars) == 1 else None
    if isinstance(schema, dict):
        raise Unsupported(_part_refused(schema, schema, "", tokenizer), error)
    raise InvalidRequest(error)


def _error(source: str, tokenizer: LLTokenizer) -> str:
    """Why no output can match the grammar."""
    matcher = LLMatcher(tokenizer, source, log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error():
        return ""
    error = " ".join(matcher.get_error().split())[:MAX_ERROR_CHARS]
    return "no output can satisfy it" if error.startswith("NoExtension") else error


def _part_refused(root: dict[str, Any], schema: Schema, where: str, tokenizer: LLTokenizer) -> str:
    """The JSON Pointer of the deepest part that does not compile alone."""
    for keys, part in children(schema) if isinstance(schema, dict) else ():
        if isinstance(part, dict) and keys[0] not in ("$defs", "definitions"):
            shared: dict[str, Any] = {name: root[name] for name in ("$defs", "definitions", "$schema") if name in root}
            alone = {**part, **shared}
            if _error(_source({"json_schema": alone}), tokenizer):
                return _part_refused(root, part, pointer(where, *keys), tokenizer)
    return where


def _json(params: StructuredOutputsParams) -> Lowered:
    try:
        given = json.loads(params.json or '{"type": "object"}')
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"json is not JSON: {error}") from None
    if not isinstance(given, dict | bool):
        raise InvalidRequest(f"json is {given!r:.100}; a JSON schema is an object")
    try:
        rewriting = Rewriting(_closed(given) if params.disable_additional_properties else given)
        schema = rewriting.schema()
    except InvalidRequest:
        raise
    except RecursionError:
        raise Unsupported("", "it is nested too deeply, or excludes a text that is too long") from None
    except (TypeError, AttributeError, KeyError, ValueError, OverflowError) as error:
        why = f"{type(error).__name__}: {error!s:.100}"
        raise Unsupported("", f"a keyword has a value of the wrong type ({why})") from None
    options = _options(params)
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    schema.pop("x-guidance", None)  # llguidance's options, which a request must not set
    whole = {"x-guidance": options, **schema} if options else schema
    return Lowered(_source({"json_schema": whole}), rewriting.warnings)


def _options(params: StructuredOutputsParams) -> dict[str, Any]:
    if params.whitespace_pattern is not None:
        return {"whitespace_pattern": params.whitespace_pattern}
    return {"whitespace_flexible": False} if params.disable_any_whitespace else {}


def _closed(schema: Schema) -> Schema:
    """The schema with additional properties forbidden in all objects."""
    if isinstance(schema, bool):
        return schema
    found = dict(schema)
    for keys, part in children(schema):
        holder: Any = found[str(keys[0])]
        if len(keys) == 1:
            found[str(keys[0])] = _closed(part)
        else:
            found[str(keys[0])] = holder = holder.copy()
            holder[keys[1]] = _closed(part)
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def _lark(grammar: str) -> str:
    """The grammar in Lark; one with `::=`, which Lark lacks, is converted from GBNF or EBNF."""
    if "::=" not in grammar:
        return grammar
    try:
        return str(any_to_lark(grammar))
    except MemoryError:
        raise
    except Exception as error:  # the converter raises Exception itself for a rule that is missing
        why = "it ends within a character" if isinstance(error, IndexError) else f"{error!s:.200}"
        raise InvalidRequest(f"grammar is not valid GBNF: {why}") from None


def _with_fixed_schemas(grammar: str) -> str:
    """The grammar with the patterns in its `%json` schemas changed like those of `json`."""
    parts, end = list[str](), 0
    for match in re.finditer(r"%json\s*(?=\{)", grammar):
        if match.start() < end:
            continue  # inside the previous schema
        try:
            schema, behind = _READER.raw_decode(grammar, match.end())
            mended = with_fixed_patterns(schema)
        except (ValueError, RecursionError, TypeError, AttributeError):
            continue
        if mended != schema:
            parts += [grammar[end : match.end()], json.dumps(mended, ensure_ascii=False)]
            end = behind
    return "".join([*parts, grammar[end:]])


def _source(grammar: dict[str, Any]) -> str:
    source = json.dumps({"grammars": [grammar]}, ensure_ascii=False, separators=(",", ":"))
    if len(source) > MAX_GRAMMAR_CHARS:
        raise InvalidRequest(f"it makes a grammar of {len(source)} characters; at most {MAX_GRAMMAR_CHARS} are allowed")
    return source


def _of(grammar: dict[str, Any]) -> Lowered:
    return Lowered(_source(grammar))
