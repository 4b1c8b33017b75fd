"""Finding the loops in which a spilled accumulator is slow, in the output of objdump."""

from check_spills import innermost_loops


def body(*lines):
    """Instructions at 0x10, 0x14, ..."""
    return [(0x10 + 4 * i, line) for i, line in enumerate(lines)]


def test_code_after_the_end_that_jumps_back_is_no_loop():
    """The tail of a row, which a compiler moves after the loop and the return."""
    of_a_row = ["ldr q0, [x0]", "fmla v1.4s, v0.4s, v2.4s", "b.ne 10 <f>"]
    after_it = ["cbnz w1, 28 <f>", "str q1, [x2]", "ret"]
    tail = ["str q1, [sp, #16]", "bl 90 <memcpy>", "ldr q1, [sp, #16]", "b 20 <f>"]
    assert innermost_loops(body(*of_a_row, *after_it, *tail)) == [of_a_row]


def test_a_loop_that_contains_another_is_not_innermost():
    before, inner, after = ["mov w3, w1"], ["fmla v1.4s, v0.4s, v2.4s", "b.ne 14 <f>"], ["str q1, [sp]", "b.ne 10 <f>"]
    assert innermost_loops(body(*before, *inner, *after, "ret")) == [inner]


def test_of_three_loops_only_the_third_is_innermost():
    outer, middle = ["mov w3, w1"], ["tbz w0, #1, 20 <f>"]
    inner, end = ["fmla v1.4s, v0.4s, v2.4s", "b.ne 18 <f>"], ["b.ne 14 <f>", "b.ne 10 <f>"]
    assert innermost_loops(body(*outer, *middle, *inner, *end, "ret")) == [inner]


def test_jumps_of_x86():
    loop = ["vfmadd231ps %zmm1,%zmm2,%zmm3", "cmp %rax,%rdx", "jne 10 <f>"]
    assert innermost_loops(body(*loop, "notrack jmp *%rax", "bnd jmp 10 <f>", "ret")) == [loop]
