"""Decodes JSON into a msgspec Struct, strictly: errors name the field and its value."""

import difflib
import functools
import re
from collections.abc import Collection, Iterator
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from .unknown_fields import (
    MAX_WARNINGS,
    NO_MEDIA,
    UNSUPPORTED,
    check_number_of_nodes,
    is_harmless,
    without_unknown_fields,
)

MAX_EXPLAINED_BYTES = 256 << 10  # longer bodies get shorter errors, without the value, and no 7.0 for 7
MAX_REREAD_BYTES = 2 << 20  # bytes read again in total because of the unknown fields of one body
MAX_SHOWN_CHARS = 60
MAX_ERROR_CHARS = 2000  # of msgspec's errors, which repeat names of any length

Body = TypeVar("Body", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_REQUIRED = re.compile(r"Object missing required field `(\w+)`(?: - at `\$(.*)`)?")
_WHOLE_NUMBER = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float` - at `\$\.(\w+).*`", re.DOTALL)
_PLACE = re.compile(r"^(.*?) - at (?:`key` in )?`\$(.*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")


def decode_body(kind: type[Body], body: bytes, lenient: bool = False) -> tuple[Body, list[str]]:
    """(the body, warnings). Raises InvalidRequest. `lenient`: unknown fields are left out, with a warning each."""
    decoder: BodyDecoder[Body] = _decoder(kind, lenient)
    return decoder.decode(body)


def field_names(body: bytes) -> Collection[str]:
    """The fields of the body; none of one that is no object, which its decoder refuses. Raises InvalidRequest."""
    check_number_of_nodes(body)
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ()


@functools.cache
def _decoder(kind: Any, lenient: bool) -> Any:
    return BodyDecoder(kind, lenient)


class BodyDecoder(Generic[Body]):
    """Decodes one kind of body. Unknown fields are refused; `lenient`: left out, with a warning each."""

    def __init__(self, kind: type[Body], lenient: bool = False):
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._lenient = lenient

    def decode(self, body: bytes) -> tuple[Body, list[str]]:
        """(the body, warnings). Raises InvalidRequest."""
        check_number_of_nodes(body)
        warnings = list[str]()
        if len(body) > MAX_EXPLAINED_BYTES:  # decoding it twice takes too long
            body, warnings = self._without_unknown_fields(body)
        try:
            return self._decoder.decode(body), warnings
        except msgspec.ValidationError as error:
            text = _text(error)
            unknown = _UNKNOWN.fullmatch(text)
            whole = len(body) <= MAX_EXPLAINED_BYTES and _WHOLE_NUMBER.fullmatch(text)
            if unknown is None and not whole:
                raise self._invalid(error, body) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"The body is not valid JSON: {_plain(error)}") from None
        if not warnings:
            body, warnings = self._without_unknown_fields(body)
        return self._decode_leniently(body, warnings)

    def _without_unknown_fields(self, body: bytes) -> tuple[bytes, list[str]]:
        """(the body without those top-level fields that may be ignored, warnings)."""
        body, names = without_unknown_fields(body, self._kind.__struct_fields__, self._lenient)
        if len(names) > MAX_WARNINGS:
            raise InvalidRequest(f"The body has more than {MAX_WARNINGS} unknown fields.")
        return body, [f"ignored: {self._refusal(name, '').message}" for name in names]

    def _decode_leniently(self, body: bytes, warnings: list[str]) -> tuple[Body, list[str]]:
        """Decode again: unknown fields are ignored where allowed, and 7.0 is 7, as in JSON Schema."""
        value, made_whole = _generic(body), set[str]()
        _drop_unknown_nulls(value, self._kind)
        for _ in range(min(MAX_WARNINGS, 2 + MAX_REREAD_BYTES // len(body))):
            try:
                return self._decoder.decode(msgspec.json.encode(value)), warnings
            except msgspec.ValidationError as error:
                text = _text(error)
                number = _WHOLE_NUMBER.fullmatch(text) if len(body) <= MAX_EXPLAINED_BYTES else None
                if number is not None and number[1] not in made_whole:
                    made_whole.add(number[1])
                    value[number[1]] = _with_integers(value[number[1]])
                    continue
                unknown = _UNKNOWN.fullmatch(text)
                if unknown is None:
                    raise self._invalid(error, body) from None
                name, path = unknown[1], unknown[2] or ""
                parent = _walk(value, path)
                if not isinstance(parent, dict) or name not in parent:  # its name is too long to be repeated
                    raise self._refusal(name, path, value) from None
                if not is_harmless(name, parent[name]):
                    refusal = self._refusal(name, path, value)
                    if not self._lenient:
                        raise refusal from None
                    warnings.append(f"ignored: {refusal.message}")
                del parent[name]
        raise InvalidRequest("The body has too many unknown fields for its length.")

    def _refusal(self, name: str, path: str, body: Any = None) -> InvalidRequest:
        where, place = f" in {path.lstrip('.')}" if path else "", f"{path}.{name}".lstrip(".")
        if name in UNSUPPORTED:
            reason, instead = UNSUPPORTED[name].reason, UNSUPPORTED[name].instead
            more = (f": {reason}" if reason else "") + (f"; use {instead}" if instead else "")
            return InvalidRequest(f"{name}{where} is not supported{more}", place)
        struct = _struct_in(*_type_at(self._kind, path, body))
        known = () if struct is None else struct.__struct_fields__
        close = difflib.get_close_matches(name[:64], known, 1, 0.6)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return InvalidRequest(f"{_shown(name)}{where} is not a known field{hint}", place[:200])

    def _invalid(self, error: Exception, body: bytes) -> InvalidRequest:
        """msgspec reports what was expected and where; this adds the value."""
        text = _text(error)
        if required := _REQUIRED.fullmatch(text):
            name = f"{required[2] or ''}.{required[1]}".lstrip(".")
            return InvalidRequest(f"{name} is required", name)
        place = _PLACE.match(text)
        if place is None:
            return InvalidRequest(f"The body is invalid: {_lowered(text)}")
        expectation, path = _lowered(place[1]), place[2]
        try:
            whole = _generic(body) if len(body) <= MAX_EXPLAINED_BYTES else _MISSING
        except InvalidRequest:  # a number too large for any value
            whole = _MISSING
        if expectation.startswith(("invalid enum value", "invalid value")):
            tagged, _ = _type_at(self._kind, path.rpartition(".")[0], whole)
            choices = _choices(_type_at(self._kind, path, whole)[0]) or _tags(tagged)
            expectation = f"expected one of {', '.join(map(str, choices))}" if choices else expectation
        elif expectation.startswith("expected null") and (field := path.rpartition(".")[2]) in UNSUPPORTED:
            return self._refusal(field, path.rpartition(".")[0])
        path = path.removesuffix("[...]")  # a key or value of an object: which one msgspec does not say
        name = path.lstrip(".")
        value = _MISSING if whole is _MISSING else _walk(whole, path)
        shown = name if value is _MISSING else f"{name} is {_shown(value)}"
        if isinstance(value, str) and value in _MEDIA:
            expectation += f"; {NO_MEDIA}"
        return InvalidRequest(f"{shown}: {expectation}", name)


def _text(error: Exception) -> str:
    text, half = str(error), MAX_ERROR_CHARS // 2
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:half]}…{text[-half:]}"


def _lowered(text: str) -> str:
    return (text[:1].lower() + text[1:]).replace("`", "").replace(" | null", "")


def _plain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    if isinstance(error, UnicodeDecodeError) or "UTF-8" in text:  # msgspec to 0.22, and since
        return "it is not UTF-8"
    # msgspec says so of half a surrogate pair, too, which clients send that cut a text within a character.
    return "it ends too early, or a string has half of a surrogate pair, like \\ud83d" if "truncated" in text else text


def _generic(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {_plain(error)}") from None


def _with_integers(value: Any) -> Any:
    """The value with 7 for each 7.0; 1e30 stays a float, as no field is so large."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**63:
            return int(value)
        case list():
            return [_with_integers(item) for item in value]
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case _:
            return value


_MEDIA = {"image_url", "image", "input_image", "input_audio", "audio_url", "video_url"}  # types of parts
_MISSING = object()


def _walk(value: Any, path: str) -> Any:
    """The value at a msgspec path such as `.messages[0].role`; _MISSING where the path is ambiguous."""
    for name, index, _any in _STEP.findall(path):
        if name and isinstance(value, dict) and name in value:
            value = value[name]
        elif index and isinstance(value, list) and int(index) < len(value):
            value = value[int(index)]
        else:
            return _MISSING
    return value


def _shown(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


def _type_at(kind: Any, path: str, value: Any = None) -> tuple[Any, Any]:
    """The annotation at `path`, and the part of `value` there; None when the path leads nowhere."""
    for name, index, _any in _STEP.findall(path):
        if name:
            struct = _struct_in(kind, value)
            kind = None if struct is None else _hints(struct).get(name)
            value = value.get(name) if isinstance(value, dict) else None
        elif index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
    return kind, value


def _struct_in(hint: Any, value: Any = None) -> Any:
    """The Struct inside a union, list or Annotated: of several, the one with the value's tag, or else the first."""
    structs = list(_structs_in(hint))
    if len(structs) > 1 and isinstance(value, dict):
        for struct in structs:
            config = struct.__struct_config__
            if config.tag is not None and value.get(config.tag_field) == config.tag:
                return struct
    return structs[0] if structs else None


def _structs_in(hint: Any) -> Iterator[Any]:
    if isinstance(hint, type) and get_origin(hint) is None and issubclass(hint, msgspec.Struct):
        yield hint
    for part in get_args(hint):
        yield from _structs_in(part)


def _tags(hint: Any) -> list[str]:
    """The values that distinguish the Structs of a union."""
    return [str(tag) for struct in _structs_in(hint) if (tag := struct.__struct_config__.tag) is not None]


@functools.cache
def _hints(struct: Any) -> dict[str, Any]:
    return get_type_hints(struct)


def _drop_unknown_nulls(value: Any, hint: Any) -> None:
    """Drop unknown fields that are null, which count as absent. Parts that no Struct describes stay."""
    struct = _struct_in(hint, value)
    if struct is None:
        return
    if isinstance(value, list):
        for item in value:
            _drop_unknown_nulls(item, hint)
    elif isinstance(value, dict):
        hints = _hints(struct)
        for name in [name for name, inner in value.items() if inner is None and name not in hints]:
            del value[name]
        for name, inner in value.items():
            if isinstance(inner, (dict, list)):
                _drop_unknown_nulls(inner, hints.get(name))


def _choices(hint: Any) -> tuple[Any, ...]:
    """The values of the first Literal inside a union."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next((found for part in get_args(hint) if (found := _choices(part))), ())
