"""Answers the remote calls that clients may make; each result is JSON."""

from typing import Any, assert_never

import msgspec

from paged_serve.protocol.messages.engine_core import MAX_UTILITY_BYTES, Utility, UtilityCall, UtilityResult
from paged_serve.protocol.messages.message import MAX_LONG_TEXT

from ..engine.debug import check_invariants, dump_state
from ..engine.engine import EngineCore


def answer_call(engine: EngineCore, call: UtilityCall, now: float, *, is_remote: bool) -> UtilityResult:
    """The result of the call, or its error. Clients on other hosts may request statistics only."""
    if is_remote and call.utility is not Utility.STATS:
        return UtilityResult(call.call_id, b"{}", error=f"{call.utility.name} is not answered to other hosts")
    try:
        result = msgspec.json.encode(_answer(engine, call.utility, now))
    except AssertionError as error:
        return UtilityResult(call.call_id, b"{}", error=str(error)[:MAX_LONG_TEXT] or "an invariant does not hold")
    if len(result) > MAX_UTILITY_BYTES:
        too_large = f"the answer takes {len(result)} bytes; the limit is {MAX_UTILITY_BYTES}"
        return UtilityResult(call.call_id, b"{}", error=too_large)
    return UtilityResult(call.call_id, result)


def _answer(engine: EngineCore, utility: Utility, now: float) -> Any:
    match utility:
        case Utility.STATS:
            return msgspec.structs.asdict(engine.stats(now))
        case Utility.CHECK_INVARIANTS:
            check_invariants(engine)
            return {}
        case Utility.DUMP_STATE:
            return dump_state(engine)
        case Utility.RESET_PREFIX_CACHE:
            engine.kv_cache.pool.drop_all()
            return {}
        case _:
            assert_never(utility)
