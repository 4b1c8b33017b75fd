"""Reads the header of a GGUF file from front to back; no length in it is believed before it is checked."""

import struct
from pathlib import Path
from typing import BinaryIO

from ..errors import ConfigError

MAX_HEADER_BYTES = 1 << 28  # metadata of 256,000 tokens and their merges takes 15 MB
MAX_STRING_BYTES = 1 << 24
MAX_ITEMS = 1 << 22  # of one array

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}
STRING_LENGTH_BYTES = 8


class Cursor:
    """The place in the header. Raises ConfigError, with the file and the place, for what a file cannot contain."""

    def __init__(self, path: Path, file: BinaryIO, size: int):
        self.at = 0
        self.path = path
        self.size = size
        self._file = file

    def refused(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path} is not a usable GGUF file: {problem}")

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes; `what` names them in the error."""
        if count > self.size - self.at:
            raise self.refused(
                f"{what} takes {count} bytes from byte {self.at}, but the file ends at {self.size}; download it again"
            )
        if self.at + count > MAX_HEADER_BYTES:
            raise self.refused(f"{what} ends beyond the {MAX_HEADER_BYTES} bytes that a header may take")
        taken = self._file.read(count)
        if len(taken) != count:
            raise self.refused(f"it became shorter while {what} was read")
        self.at += count
        return taken

    def whole(self, code: str, what: str) -> int:
        """An unsigned integer; `code` as in struct."""
        number: int = struct.unpack("<" + code, self.take(struct.calcsize(code), what))[0]
        return number

    def text(self, what: str, most: int = MAX_STRING_BYTES) -> str:
        length = self.whole("Q", f"the length of {what}")
        if length > most:
            raise self.refused(f"{what} has {length} bytes; at most {most} are read")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise self.refused(f"{what} is not UTF-8 at its byte {error.start}") from None

    def name(self, what: str, most: int) -> str:
        """A text of printable ASCII, as the names of keys and tensors are."""
        name = self.text(what, most)
        if not name or not name.isascii() or not name.isprintable():
            raise self.refused(f"{what} is {name!a:.80}; a name is printable ASCII")
        return name

    def value(self, kind: int, what: str) -> Value:
        """A metadata value of the type `kind`."""
        if kind == ARRAY:
            return self._array(what)
        if kind == STRING:
            return self.text(what)
        return self._numbers(kind, 1, what)[0]

    def _array(self, what: str) -> list[Scalar]:
        kind, count = self.whole("I", f"the type of {what}"), self.whole("Q", f"the length of {what}")
        if kind == ARRAY:
            raise self.refused(f"{what} is an array of arrays, which no key of a model is")
        least = STRING_LENGTH_BYTES if kind == STRING else 1
        if count > MAX_ITEMS or count * least > self.size - self.at:
            raise self.refused(
                f"{what} has {count} items; the file has {self.size - self.at} bytes more, and at most {MAX_ITEMS} "
                "items are read"
            )
        if kind == STRING:
            return [self.text(f"item {index} of {what}") for index in range(count)]
        return self._numbers(kind, count, what)

    def _numbers(self, kind: int, count: int, what: str) -> list[Scalar]:
        if kind not in NUMBERS:
            raise self.refused(f"{what} has the type {kind}, which GGUF does not have")
        code = f"<{count}{NUMBERS[kind]}"
        found: list[Scalar] = list(struct.unpack(code, self.take(struct.calcsize(code), what)))
        if kind != BOOL:
            return found
        if any(each not in (0, 1) for each in found):
            raise self.refused(f"{what} holds a truth value that is neither 0 nor 1")
        return [bool(each) for each in found]
