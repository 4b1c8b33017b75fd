"""Counts work in lines of Python instead of seconds, so that tests of its growth do not depend on the machine."""

import sys


def count_lines(call, *modules):
    """The number of lines of `modules` (of all, if none is given) that `call` executes."""
    files = {module.__file__ for module in modules}
    count = 0

    def in_frame(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return in_frame

    def trace(frame, _event, _argument):
        return in_frame if not files or frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
