"""A row's grammar: masks depend on the output alone; copies, failures, and free text before the grammar's part."""

import json
import math
import threading

import numpy as np
import pytest

from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar
from paged_serve.workers.batch.grammars import MANY_BITS, MAX_COMPILED, STEPS_WITHOUT_THREAD, Grammars
from paged_serve.workers.batch.sampling_columns import SamplingColumns
from paged_serve.workers.process.rank import DEMO_MODEL

VOCAB_SIZE, EOS = 1024, (2, 0)
TOKENIZER = DEMO_MODEL / "tokenizer.json"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = Grammar(json.dumps({"grammars": [{"json_schema": SCHEMA}]}))


@pytest.fixture(scope="module", params=["in the caller", "in threads"])
def grammars(request):
    """Where masks are computed; those that the tests compare with come from the caller."""
    bits = 0 if request.param == "in threads" else math.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paged_serve.workers.batch.grammars.THREADED_BITS", bits)
        return Grammars(TOKENIZER, VOCAB_SIZE, EOS)


def computing_in_thread(num_rows: int) -> Grammars:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paged_serve.workers.batch.grammars.THREADED_BITS", num_rows * VOCAB_SIZE)
        return Grammars(TOKENIZER, VOCAB_SIZE, EOS)


def lark(grammar: str, **more) -> Grammar:
    return Grammar(json.dumps({"grammars": [{"lark_grammar": grammar}]}), **more)


def compute(grammars, rows) -> None:
    grammars.start(rows)
    if grammars._running is not None:
        grammars._running.result()  # else `wait` might compute the masks before the thread begins
    grammars.wait()


def allowed(grammars, row) -> list[int]:
    compute(grammars, [row])
    return allowed_by(row.bits)


def allowed_by(bits) -> list[int]:
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()


def generated(grammars, row, rng, limit=200) -> list[int]:
    """Tokens drawn from the allowed ones until an end token."""
    output = []
    while len(output) < limit:
        output.append(int(rng.choice(allowed(grammars, row))))
        if output[-1] in EOS:
            break
        row.append(output[-1])
    return output


def test_a_row_that_returns_with_its_output_has_the_same_masks(grammars):
    rng = np.random.default_rng(1)
    for _ in range(5):
        row = grammars.prepare(JSON, [])
        output: list[int] = []
        while not output or output[-1] not in EOS:
            here = allowed(grammars, row)
            assert allowed(grammars, grammars.prepare(JSON, output)) == here, output
            output.append(int(rng.choice(here)))
            row.append(output[-1])
            assert len(output) < 300


def test_rows_of_one_grammar_do_not_disturb_each_other(grammars):
    rows = [grammars.prepare(JSON, []) for _ in range(8)]
    alone = [generated(grammars, grammars.prepare(JSON, []), np.random.default_rng(seed)) for seed in range(8)]
    rngs, outputs = [np.random.default_rng(seed) for seed in range(8)], [[] for _ in rows]
    for _ in range(200):
        running = [i for i, output in enumerate(outputs) if not output or output[-1] not in EOS]
        compute(grammars, [rows[i] for i in running])
        for i in running:
            outputs[i].append(int(rngs[i].choice(allowed_by(rows[i].bits))))
            rows[i].append(outputs[i][-1])
    assert outputs == alone


def test_masks_do_not_wait_for_a_thread_that_has_not_begun_them():
    grammars, other = computing_in_thread(num_rows=1), Grammars(TOKENIZER, VOCAB_SIZE, EOS)
    row, is_over = grammars.prepare(JSON, []), threading.Event()
    is_busy = grammars._thread.submit(is_over.wait)
    grammars.start([row])
    grammars.wait()
    is_over.set()
    is_busy.result()
    assert allowed_by(row.bits) == allowed(other, other.prepare(JSON, []))
    token = allowed_by(row.bits)[0]
    grammars.append([(row, token)])
    assert allowed(grammars, row) == allowed(other, other.prepare(JSON, [token]))


def test_a_thread_that_was_late_is_not_used_for_some_steps_unless_masks_are_many():
    grammars, is_over = computing_in_thread(num_rows=2), threading.Event()
    rows = [grammars.prepare(JSON, []) for _ in range(MANY_BITS // VOCAB_SIZE)]
    is_busy = grammars._thread.submit(is_over.wait)
    grammars.start(rows[:2])
    grammars.wait()
    is_over.set()
    is_busy.result()
    for number_of_rows, is_used in ((len(rows), True), *[(2, False)] * STEPS_WITHOUT_THREAD, (1, False), (2, True)):
        grammars.start(rows[:number_of_rows])
        assert (grammars._running is not None) == is_used
        if is_used:
            grammars._running.result()
        grammars.wait()


def test_only_end_tokens_follow_a_complete_output(grammars):
    row = grammars.prepare(lark('start: "yes"'), [])
    assert generated(grammars, row, np.random.default_rng(0))[-1] in EOS
    assert allowed(grammars, row) == sorted(EOS)


def test_the_first_token_decides_whether_free_text_comes_before(grammars):
    form = lark('start: "no"', after=(7,), opens=(5, 800))
    bound = allowed(grammars, grammars.prepare(lark('start: "no"'), []))
    assert allowed(grammars, grammars.prepare(form, [])) == sorted({*bound, 5, 800})
    free = sorted({*range(VOCAB_SIZE)} - {*EOS})
    assert allowed(grammars, grammars.prepare(form, [800])) == free
    assert allowed(grammars, grammars.prepare(form, [800, 5])) == free
    row = grammars.prepare(form, [])
    allowed(grammars, row)
    row.append(800)
    assert allowed(grammars, row) == free
    assert allowed(grammars, grammars.prepare(form, [800, 9, 7])) == bound
    token = next(token for token in bound if token != EOS[0])
    assert allowed(grammars, grammars.prepare(form, [token])) == allowed(
        grammars, grammars.prepare(lark('start: "no"'), [token])
    )


def test_a_model_without_end_tokens_ends_with_its_tokenizers_after_a_grammar_alone():
    grammars = Grammars(TOKENIZER, VOCAB_SIZE, ())
    [end] = grammars.end_token_ids
    row = grammars.prepare(lark('start: "no"'), [])
    assert generated(grammars, row, np.random.default_rng(0))[-1] == end
    free = allowed(grammars, grammars.prepare(lark('start: "no"', after=(7,)), [5]))
    assert free == sorted({*range(VOCAB_SIZE)} - {end}), "it ended without the grammar's part"


def test_the_output_is_free_until_a_token_starts_the_grammar(grammars):
    row = grammars.prepare(lark('start: "no"', after=(7, 9)), [5, 6])
    assert allowed(grammars, row) == sorted({*range(VOCAB_SIZE)} - {*EOS}), "it ended without the grammar's part"
    row.append(9)
    bound = allowed(grammars, row)
    assert 0 < len(bound) < 10
    assert bound == allowed(grammars, grammars.prepare(lark('start: "no"', after=(7, 9)), [5, 6, 9]))
    assert bound == allowed(grammars, grammars.prepare(lark('start: "no"'), []))


@pytest.mark.parametrize("source", ["nonsense", '{"grammars": []}', '{"grammars": [{"lark_grammar": "start: /(/"}]}'])
def test_a_grammar_that_does_not_compile_fails_its_row_alone(grammars, source):
    broken, whole = grammars.prepare(Grammar(source), []), grammars.prepare(JSON, [])
    compute(grammars, [broken, whole])
    assert broken.failure
    assert "\n" not in broken.failure
    assert not whole.failure
    assert whole.bits.any()


def test_an_output_that_the_grammar_does_not_allow_fails(grammars):
    row = grammars.prepare(lark('start: "yes"'), [500])
    allowed(grammars, row)
    assert row.failure
    row.append(3)  # has no effect


def test_a_grammar_that_no_output_satisfies_fails(grammars):
    row = grammars.prepare(lark("start: X\nX: /a+/ & /b+/"), [])
    compute(grammars, [row])
    assert row.failure


def many_words(limit: int, max_length: int) -> Grammar:
    """A grammar for which llguidance builds many states: it limits both the words and the characters of texts."""
    names = [f"p{i}" for i in range(10)]
    words = [rf"^(?:\S+\s+){{0,{limit + i}}}\S+$" for i in range(10)]
    properties = {
        name: {"type": "string", "pattern": words[i], "maxLength": max_length - i} for i, name in enumerate(names)
    }
    schema = {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    return Grammar(json.dumps({"grammars": [{"json_schema": schema}]}))


def tokens_of_words() -> list[int]:
    text = json.dumps({f"p{i}": f"some words of a text {i} that goes on for a while" for i in range(10)})
    return Tokenizer(DEMO_MODEL).encode(text, add_special_tokens=False)


def exhaust(grammars, form: Grammar) -> None:
    """Reach the limit that all copies of the matcher share: consume words of varying lengths without a mask."""
    tokenizer = Tokenizer(DEMO_MODEL)
    for number in range(1, 100):
        words = ("w" * (1 + i * number % 17) for i in range(35))
        copy = grammars._compiled[form.source].deep_copy()
        if not copy.consume_tokens(tokenizer.encode(f'{{"p0": "{" ".join(words)}', add_special_tokens=False)):
            return
    raise AssertionError("the limit was not reached")


def test_exhausting_a_copy_changes_no_mask_of_other_rows(grammars):
    form, tokens = many_words(40, 500), tokens_of_words()
    other = Grammars(TOKENIZER, VOCAB_SIZE, EOS)
    row, alone = grammars.prepare(form, []), other.prepare(form, [])
    for number, token in enumerate(tokens):
        assert allowed(grammars, row) == allowed(other, alone), number
        row.append(token)
        alone.append(token)
        if number == 50:
            exhaust(grammars, form)
    assert row.origin is None, "the row still shares its matcher"
    assert not row.failure
    later = grammars.prepare(form, [])
    assert allowed(grammars, later) == allowed(other, other.prepare(form, []))
    assert later.origin is not None, "later rows do not share a new matcher"


def test_an_output_that_is_read_again_has_the_same_limits(grammars):
    form, tokens = many_words(40, 500), tokens_of_words()
    row = Grammars(TOKENIZER, VOCAB_SIZE, EOS).prepare(form, [])
    for token in tokens:
        allowed(grammars, row)
        row.append(token)
    assert not row.failure
    again = Grammars(TOKENIZER, VOCAB_SIZE, EOS).prepare(form, tokens)
    assert allowed(grammars, again) == allowed(grammars, row)
    assert not again.failure


def test_a_row_that_exceeds_the_limits_by_itself_fails_alone(grammars):
    form, tokens = many_words(60, 1000), tokens_of_words()
    first, second = grammars.prepare(form, []), grammars.prepare(form, [])
    for token in tokens:
        allowed(grammars, first)
        first.append(token)
    assert "lexer error" in first.failure
    assert allowed(grammars, second) == allowed(Grammars(TOKENIZER, VOCAB_SIZE, EOS), grammars.prepare(form, []))
    assert not second.failure


def test_few_compiled_grammars_are_kept(grammars):
    for number in range(2 * MAX_COMPILED):
        grammars.prepare(lark(f'start: "{number}"'), [])
    assert len(grammars._compiled) == MAX_COMPILED


def test_a_tokenizer_that_cannot_be_read_refuses_the_start(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Grammars(tmp_path / "tokenizer.json", VOCAB_SIZE, EOS)


def test_a_tokenizer_of_a_larger_model_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"tokenizer\.json: it has 1022 tokens, .* only 1000, .* --tokenizer$"):
        Grammars(TOKENIZER, 1000, EOS)


def test_added_tokens_that_the_model_lacks_are_no_tokens_of_a_grammar(tmp_path):
    found = json.loads(TOKENIZER.read_text())
    for special, content in enumerate(("<other>", "<pad>")):
        found["added_tokens"].append(
            {**found["added_tokens"][-1], "id": 1024 + special, "special": bool(special), "content": content}
        )
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    larger, own = (Grammars(file, 1024, EOS) for file in (tmp_path / "tokenizer.json", TOKENIZER))
    for text in ("<tool_call> <pad> <other>", "The <b>"):
        forced = own.forced(own.prepare(lark(f"start: {json.dumps(text)}"), []))
        assert forced
        assert larger.forced(larger.prepare(lark(f"start: {json.dumps(text)}"), [])) == forced


def test_a_model_may_read_more_tokens_than_it_writes(tmp_path):
    found = json.loads(TOKENIZER.read_text())
    vocabulary, merges = found["model"]["vocab"], found["model"]["merges"]
    first = [token for token, index in sorted(vocabulary.items(), key=lambda each: each[1]) if token.isascii()][-40:]
    pairs = [(one, other) for one in first for other in first if one + other not in vocabulary][:8]
    for one, other in pairs:
        vocabulary[one + other] = max(1024, len(vocabulary))
        merges.append([one, other] if isinstance(merges[0], list) else f"{one} {other}")
    (tmp_path / "tokenizer.json").write_text(json.dumps(found))
    reading, own = Grammars(tmp_path / "tokenizer.json", 1024, EOS, num_unused=8), Grammars(TOKENIZER, 1024, EOS)
    for text in ("".join(pairs[0]), "The <b> <tool_call>"):
        forced = own.forced(own.prepare(lark(f"start: {json.dumps(text)}"), []))
        assert forced
        assert reading.forced(reading.prepare(lark(f"start: {json.dumps(text)}"), [])) == forced
    with pytest.raises(ConfigError, match=r"it has \d+ tokens, .* only 1027"):
        Grammars(tmp_path / "tokenizer.json", 1024, EOS, num_unused=3)


def test_a_token_of_a_row_that_has_ended_does_not_change_the_mask_of_the_next_request(grammars):
    columns = SamplingColumns(1, VOCAB_SIZE, grammars)
    row, opening = np.array([0]), 7
    free_first = lark('start: "a"', after=(9,), opens=(opening,))
    for params in (SamplingParams(grammar=free_first), SamplingParams(allowed_token_ids=(5,))):
        columns.reset(0, params, 0, np.array([1], np.int32), 1, EOS)
        columns.start_masks(row)
        columns.await_masks(row)
        columns.append(row, np.array([opening]))
    columns.start_masks(row)
    columns.await_masks(row)
    assert allowed_by(columns.masks[0]) == [5]


def test_masks_are_computed_although_the_cpus_of_their_thread_are_refused(grammars):
    elsewhere = Grammars(TOKENIZER, VOCAB_SIZE, EOS, [1 << 10])  # no machine has this one
    assert allowed(elsewhere, elsewhere.prepare(JSON, [])) == allowed(grammars, grammars.prepare(JSON, []))
