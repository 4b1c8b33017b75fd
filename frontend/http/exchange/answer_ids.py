"""Ids of answers that outlive their connection: when each was begun, and which of several frontends owns it.

A prefix names the interface; behind it are 8 hexadecimal digits of the moment, 4 of the owner, and 20 more.
"""

import re
import secrets

ANSWER_ID = "((chat)?cmpl-|msg_|resp_)[0-9a-f]{32}"
_ANSWER_ID = re.compile(ANSWER_ID)
_CREATED_DIGITS = 8
OWNER_DIGITS = 4
REST_DIGITS = 20
_DIGITS = _CREATED_DIGITS + OWNER_DIGITS + REST_DIGITS


def answer_id(prefix: str, created: int, digest: str) -> str:
    """`prefix` with its separator; `created` in seconds since 1970; `digest`: the digits of the owner and the rest."""
    return f"{prefix}{created:0{_CREATED_DIGITS}x}{digest}"


def new_answer_id(prefix: str, created: int, index: int, num_frontends: int) -> str:
    """Of an answer without a key, whose owner among so many frontends is `index`."""
    owner = index + num_frontends * secrets.randbelow(16**OWNER_DIGITS // num_frontends)
    return answer_id(prefix, created, f"{owner:0{OWNER_DIGITS}x}{secrets.token_hex(REST_DIGITS // 2)}")


def created_of(id_: str) -> int:
    return int(id_[-_DIGITS:][:_CREATED_DIGITS], 16)


def owner_of_answer(id_: str, num_frontends: int) -> int | None:
    """None for what is no answer's id."""
    if not _ANSWER_ID.fullmatch(id_):
        return None
    return int(id_[-OWNER_DIGITS - REST_DIGITS :][:OWNER_DIGITS], 16) % num_frontends
