"""Tokens to text: every division into pieces gives the whole text, and stop strings cut at the same character."""

import json
import random
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from paged_serve.frontend.conversation.prompt_encoder import LiteralTokenizer
from paged_serve.frontend.text.detokenizer import Detokenizer
from paged_serve.frontend.text.sequence_text import SequenceText
from paged_serve.frontend.text.stop_strings import StopStrings
from paged_serve.frontend.text.tokenizer import Tokenizer, words_to_token_ids
from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

EMOJI_TEXT = "naïve café 👩🏽‍🚀 flies 🚀 to 火星, 'tschüß' 🇩🇪 said. " * 3


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory) -> Tokenizer:
    """A tokenizer in which every byte is a token, so that characters are split, with some merges and special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|two words|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([EMOJI_TEXT], trainer)
    tokenizer.add_tokens(["<tool call>"])
    return saved(tokenizer, tmp_path_factory.mktemp("byte_level"), eos_token="<|end|>")


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory) -> Tokenizer:
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdef", "▁a", "▁abc", "é"]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({token: i for i, token in enumerate(vocabulary)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return saved(tokenizer, tmp_path_factory.mktemp("sentence_piece"), bos_token="<s>", add_bos_token=True)


def saved(tokenizer: tokenizers.Tokenizer, folder: Path, **config: object) -> Tokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(str(folder))


def streamed(tokenizer: Tokenizer, prompt: list[int], output: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer, prompt)
    return "".join([detokenizer.push(token) for token in output] + [detokenizer.finish()])


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 400)))
def test_pieces_of_any_byte_level_sequence_join_to_the_whole(byte_level, ids):
    assert streamed(byte_level, [], ids) == byte_level.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(), cut=st.integers(0, 50))
def test_output_continues_the_prompt_even_within_a_character(byte_level, text, cut):
    ids = byte_level.encode(text)
    prompt, output = ids[:cut], ids[cut:]
    assert byte_level.decode(prompt).rstrip("�") + streamed(byte_level, prompt, output) == text or "�" in text


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.sampled_from(["▁abc", "▁", "é", "a", "</s>", "<0xF0> <0x9F> <0x9A> <0x80>", "<0xC3> <0xA9>"])))
def test_word_pieces_keep_the_space_between_prompt_and_output(sentence_piece, words):
    ids = [sentence_piece.token_id(token) for word in words for token in word.split(" ")]
    prompt = [sentence_piece.token_id("▁a"), sentence_piece.token_id("b")]
    assert "ab" + streamed(sentence_piece, prompt, ids) == sentence_piece.decode(prompt + ids)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(replacement="_"),
        decoders.Sequence([decoders.Metaspace(replacement="▁"), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("_", " "), decoders.Metaspace(replacement="▁"), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace(Regex("▁"), " "), decoders.Fuse()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
    ],
    ids=str,
)
def test_word_pieces_are_written_as_their_decoder_writes_them(decoder, tmp_path):
    words = {"a": 0, "_b": 1, "▁c": 2, "<0x41>": 3}
    made = tokenizers.Tokenizer(models.WordLevel(words, "a"))
    made.decoder = decoder
    made.save(str(tmp_path / "tokenizer.json"))
    found, ids = Tokenizer(str(tmp_path)), [0, 1, 2, 1, 2, 3]
    assert b"".join(map(found.token_bytes, ids)).decode() == made.decode(ids)


def test_a_decoder_with_an_expression_is_refused(tmp_path):
    made = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a"))
    made.decoder = decoders.Sequence([decoders.Replace(Regex("▁+"), " "), decoders.Fuse()])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"the decoder replaces the expression '▁\+'"):
        Tokenizer(str(tmp_path))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_text_survives_encoding_and_decoding(byte_level, text):
    assert streamed(byte_level, [], byte_level.encode(text)) == text == byte_level.decode(byte_level.encode(text))


def test_half_a_character_is_held_back_and_shown_as_a_replacement_only_at_the_end(byte_level):
    first, *rest = [byte_level.token_id(char) for char in "ðŁļĢ"]  # the four bytes of a rocket
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push(first) == ""
    assert [detokenizer.push(token) for token in rest] == ["", "", "🚀"]
    detokenizer.push(first)
    assert detokenizer.finish() == "�"


def test_a_text_with_too_many_tokens_is_detected_before_it_is_encoded(byte_level):
    text = "word " * 60_000
    count = len(byte_level.encode(text, add_special_tokens=False))
    assert byte_level.tokens_beyond(text, count) == 0, "a text that fits is never refused"
    assert count // 2 < byte_level.tokens_beyond(text, count // 2) <= count
    assert byte_level.tokens_beyond("word " * 1000, 0) == 0, "a small text is simply encoded"


def test_special_tokens_are_hidden_unless_asked_for(byte_level):
    ids = [*byte_level.encode("a"), byte_level.token_id("<|two words|>"), byte_level.token_id("<tool call>")]
    assert streamed(byte_level, [], ids) == "a<tool call>"
    shown = Detokenizer(byte_level, skip_special_tokens=False)
    assert "".join(map(shown.push, ids)) == "a<|two words|><tool call>"


def reference_cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stops if text[:end].endswith(stop)]
        if matching:
            stop = max(matching, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=500, deadline=None)
@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    include=st.booleans(),
)
def test_stop_strings_cut_at_the_same_character_for_every_division(pieces, stops, include):
    machine, shown, hit = StopStrings(stops, include), "", None
    for piece in pieces:
        text, hit = machine.push(piece)
        shown += text
        if hit is not None:
            break
    else:
        shown += machine.finish()
    assert (shown, hit) == reference_cut("".join(pieces), stops, include)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.text("ab", max_size=3), max_size=12), stop=st.text("ab", min_size=1, max_size=4))
def test_no_character_of_a_stop_string_is_ever_shown(pieces, stop):
    machine, shown = StopStrings([stop]), ""
    for piece in pieces:
        text, hit = machine.push(piece)
        shown += text
        if hit is not None:
            break
    assert stop not in shown


@settings(max_examples=200, deadline=None)
@given(data=st.data(), stops=st.lists(st.text("aé🚀 ", min_size=1, max_size=3), max_size=3), minimum=st.integers(0, 8))
def test_streamed_and_whole_output_are_the_same(byte_level, data, stops, minimum):
    text = data.draw(st.text("aé🚀 ", min_size=1, max_size=20))
    ids = byte_level.encode(text)
    params = SamplingParams(stop=tuple(stops), min_tokens=minimum, max_tokens=500)

    def run(cuts: list[int]) -> tuple[str, FinishReason | None, str | int | None, int]:
        sequence, shown, used = SequenceText(byte_level, [], params), "", 0
        for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            delta = sequence.push(ids[start:end], FinishReason.LENGTH if end == len(ids) else None, None)
            shown, used = shown + delta.text, used + delta.num_tokens
            if delta.finish_reason is not None:
                return shown, delta.finish_reason, delta.stop_reason, used
        raise AssertionError("no finish")

    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(ids) - 1)), max_size=6)))
    cuts = [cut for cut in cuts if cut < len(ids)]
    assert run(cuts) == run([])


def test_a_stop_token_is_hidden_and_named_and_counted(byte_level):
    a, b = byte_level.encode("a")[0], byte_level.encode("b")[0]
    delta = SequenceText(byte_level, [], SamplingParams()).push([a, b], FinishReason.STOP, b)
    assert (delta.text, delta.stop_reason, delta.num_tokens) == ("a", b, 2)
    shown = SequenceText(byte_level, [], SamplingParams(include_stop_str_in_output=True))
    assert shown.push([a, b], FinishReason.STOP, b).text == "ab"


def test_nothing_is_emitted_after_a_stop_string(byte_level):
    sequence = SequenceText(byte_level, [], SamplingParams(stop=("cd",)))
    ids = [byte_level.encode(char)[0] for char in "abcde"]
    first = sequence.push(ids)
    assert (first.text, first.finish_reason, first.stop_reason) == ("ab", FinishReason.STOP, "cd")
    assert (first.hit_stop_string, first.num_tokens) == (True, 4)
    assert sequence.push(ids, FinishReason.STOP).text == ""


def test_bad_words_are_forbidden_with_and_without_a_space(byte_level):
    forbidden = words_to_token_ids(byte_level, ["flies"])
    assert {byte_level.decode(ids) for ids in forbidden} == {"flies", " flies"}


def test_tokens_with_a_text_in_them_are_found_by_their_bytes(byte_level, sentence_piece):
    for tokenizer in (byte_level, sentence_piece):
        for text in (" fl", "ies", ":", "no token has this", "\n"):
            expected = {token for token in range(tokenizer.vocab_size) if text.encode() in tokenizer.token_bytes(token)}
            found = tokenizer.tokens_with(text)
            assert set(found) == (expected or set(tokenizer.encode(text, add_special_tokens=False)[-1:]))
            assert tokenizer.tokens_with(text) == found
    assert len(byte_level.tokens_with(" fl")) > 0


def test_the_beginning_of_sequence_token_follows_the_tokenizer_config(sentence_piece):
    assert sentence_piece.encode("a")[0] == sentence_piece.token_id("<s>")
    assert sentence_piece.encode("a", add_special_tokens=False)[0] == sentence_piece.token_id("a")


def test_a_folder_without_a_tokenizer_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(ConfigError, match=r"no tokenizer\.json.*--tokenizer"):
        Tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.model").touch()  # transformers reads it with two packages that nothing else needs
    with pytest.raises(ConfigError, match=r"with `pip install sentencepiece protobuf` and transformers: AutoTokenizer"):
        Tokenizer(str(tmp_path))


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokenizer(str(tmp_path))


def test_random_ids_never_raise(byte_level):
    rng = random.Random(1)
    for _ in range(200):
        ids = [rng.choice([rng.randrange(2**31), rng.randrange(400)]) for _ in range(20)]
        assert streamed(byte_level, [], ids) == byte_level.decode(ids)


def test_tokenizing_a_long_text_lets_other_threads_run(byte_level):
    text = "".join(random.Random(5).choices("abcdefgh ", k=500_000))
    done, turns = threading.Event(), 0

    def take_turns() -> None:
        nonlocal turns
        while not done.wait(0.0005):
            turns += 1

    thread = threading.Thread(target=take_turns)
    thread.start()
    byte_level.encode(text)
    during = turns
    done.set()
    thread.join()
    assert during >= 10


def test_a_tokenizer_of_words_serves_models_that_do_not_generate(tmp_path):
    words = {"[UNK]": 0, "play": 1, "##ing": 2, "[CLS]": 3}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[CLS]"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = Tokenizer(str(tmp_path))
    assert read.encode("playing play") == [1, 2, 1]
    assert [read.token_text(token) for token in (1, 2, 3)] == [" play", "ing", " [CLS]"]
    read.check_tasks(("embed", "classify"))
    with pytest.raises(ConfigError, match="the decoder WordPiece, and the model generates"):
        read.check_tasks(("generate", "embed"))


def test_a_text_at_which_the_library_panics_is_refused(byte_level, tmp_path):
    panics = tokenizers.Tokenizer.from_str(byte_level.to_json())
    backtracks = pre_tokenizers.Split(Regex("(?:q|qq)+[bc]"), "isolated")  # exponential: the library gives up
    panics.pre_tokenizer = pre_tokenizers.Sequence([backtracks, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer = saved(panics, tmp_path)
    assert tokenizer.decode(tokenizer.encode("a cab")) == "a cab"
    literal = LiteralTokenizer(tokenizer)
    for encode, *others in ((tokenizer.encode,), (tokenizer.encode_pair, ""), (literal.encode, [])):
        with pytest.raises(InvalidRequest, match="the model's tokenizer fails on this text"):
            encode("q" * 60, *others)
