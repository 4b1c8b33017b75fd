"""Ids of answers that outlive their connection. An id contains the time of the answer's start and its owner frontend.

A prefix names the interface; 8 hexadecimal digits of the time, 4 of the owner, and 20 others follow.
"""

import re
import secrets

ANSWER_ID = "((chat)?cmpl-|msg_|resp_|generate-|embd-|pool-|classify-|score-|rerank-)[0-9a-f]{32}"
_ANSWER_ID = re.compile(ANSWER_ID)
_CREATED_DIGITS = 8
OWNER_DIGITS = 4
REST_DIGITS = 20
_DIGITS = _CREATED_DIGITS + OWNER_DIGITS + REST_DIGITS


def answer_id(prefix: str, created: int, digest: str) -> str:
    """`prefix` with its separator; `created` in seconds since 1970; `digest`: the digits of the owner and the rest."""
    return f"{prefix}{created:0{_CREATED_DIGITS}x}{digest}"


def new_answer_id(prefix: str, created: int, index: int, num_frontends: int) -> str:
    """The id of a new answer without a key, owned by frontend `index` of `num_frontends`."""
    owner = index + num_frontends * secrets.randbelow(16**OWNER_DIGITS // num_frontends)
    return answer_id(prefix, created, f"{owner:0{OWNER_DIGITS}x}{secrets.token_hex(REST_DIGITS // 2)}")


def created_of(id_: str) -> int:
    return int(id_[-_DIGITS:][:_CREATED_DIGITS], 16)


def owner_of_answer(id_: str, num_frontends: int) -> int | None:
    """The frontend that owns an answer; None when `id_` is not an answer's id."""
    if not _ANSWER_ID.fullmatch(id_):
        return None
    return int(id_[-OWNER_DIGITS - REST_DIGITS :][:OWNER_DIGITS], 16) % num_frontends
