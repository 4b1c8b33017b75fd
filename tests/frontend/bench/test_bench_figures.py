"""Loads, schedules and the figures of a benchmark, on hand-made examples."""

import math
import random
import statistics
import xml.etree.ElementTree
from array import array
from itertools import pairwise

import pytest

from paged_serve.frontend.bench.load.load import Lengths, arrival_times, as_text, random_load, read_load
from paged_serve.frontend.bench.load.timeline import Timeline, is_good, parse_objectives
from paged_serve.frontend.bench.report.load_result import LoadResult
from paged_serve.frontend.bench.report.load_tables import load_table, sweep_table
from paged_serve.frontend.bench.report.plot import sweep_plot
from paged_serve.frontend.bench.report.tables import Spread, number, percentile, table
from paged_serve.protocol.errors import ConfigError


def line(intended: float, chunks: list[float], ended: float, **more) -> Timeline:
    more = {"prompt_tokens": 10, "output_tokens": len(chunks), "sent": intended, **more}
    return Timeline(intended, asked_tokens=len(chunks), chunks=array("d", chunks), ended=ended, **more)


HAND_MADE = [
    line(0.0, [0.1, 0.2, 0.4], 0.5, cached_tokens=4),
    line(1.0, [1.3, 1.4], 1.4),
    line(1.0, [1.2], 2.0, sent=1.1),
    Timeline(1.5, 8, sent=1.5, chunks=array("d", [8.5]), ended=9.0, error="HTTP 429", error_detail="full"),
]


class TestLoad:
    def test_the_default_load_is_the_shared_one(self):
        load = random_load(64, Lengths(32, 512), Lengths(16, 128), seed=0, vocab_size=32_000)
        assert sum(len(request.prompt) for request in load) == 16_699
        assert sum(request.max_tokens for request in load) == 4_198
        draw = random.Random(0)
        lengths = draw.randint(32, 512), draw.randint(16, 128)
        assert (len(load[0].prompt), load[0].max_tokens) == lengths
        assert load[0].prompt == [draw.randrange(300, 31_000) for _ in range(lengths[0])]

    def test_a_small_vocabulary_changes_tokens_and_no_length(self):
        large, small = (
            random_load(9, Lengths(1, 99), Lengths(1, 9), seed=3, vocab_size=size, prefix_len=5)
            for size in (32_000, 256)
        )
        assert [(len(r.prompt), r.max_tokens) for r in large] == [(len(r.prompt), r.max_tokens) for r in small]
        assert max(token for request in small for token in request.prompt) < 256
        assert len({tuple(request.prompt[:5]) for request in small}) == 1

    def test_a_text_has_one_word_per_token(self):
        (request,) = random_load(1, Lengths(40, 40), Lengths(1, 1), seed=0, vocab_size=1000)
        assert len(as_text(request).prompt.split()) == 40

    @pytest.mark.parametrize("text", ["", "x", "0", "5-4", "-3", "1-2-3"])
    def test_invalid_lengths_are_refused(self, text):
        with pytest.raises(ValueError, match=r"must|neither"):
            Lengths.parse(text)

    def test_prompts_are_read_from_a_file(self, tmp_path):
        path = tmp_path / "prompts.jsonl"
        path.write_text(
            '{"prompt": "a", "max_tokens": 3, "x": 1}\n\n{"prompt": [1, 2]}\n{"messages": [{"role": "user"}]}\n'
        )
        load = read_load(str(path), 10, Lengths(5, 5), seed=0)
        assert [(r.prompt, r.max_tokens) for r in load] == [("a", 3), ([1, 2], 5), ([{"role": "user"}], 5)]
        assert len(read_load(str(path), 2, Lengths(5, 5), seed=0)) == 2

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ('{"prompt": "a"}\n{"prompt": 7}', "line 2: "),
            ('{"prompt": ""}', "line 1 has neither"),
            ("", "has no prompts"),
            ('{"prompt": [-1]}', "line 1: "),
        ],
    )
    def test_a_bad_file_is_refused_by_line(self, tmp_path, text, reason):
        (tmp_path / "p").write_text(text)
        with pytest.raises(ConfigError, match=reason):
            read_load(str(tmp_path / "p"), 10, Lengths(5, 5), seed=0)


class TestArrivals:
    def test_poisson_arrivals_have_the_rate_and_are_reproducible(self):
        times = arrival_times(20_000, 50.0, "poisson", seed=1)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
        assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.05)  # exponential: mean = deviation
        assert times == arrival_times(20_000, 50.0, "poisson", seed=1)
        assert times != arrival_times(20_000, 50.0, "poisson", seed=2)

    def test_fixed_burst_and_simultaneous_arrivals_have_their_times(self):
        assert arrival_times(4, 2.0, "fixed", 0) == [0.0, 0.5, 1.0, 1.5]
        assert arrival_times(5, 2.0, "burst", 0, burst_size=2) == [0.0, 0.0, 1.0, 1.0, 2.0]
        assert arrival_times(3, math.inf, "poisson", 0) == [0.0] * 3


class TestFigures:
    def test_percentiles_match_numpy(self):
        values = sorted(random.Random(0).random() for _ in range(101))
        assert [percentile(values, k / 10) for k in range(1, 10)] == pytest.approx(
            statistics.quantiles(values, n=10, method="inclusive")
        )
        assert percentile([3.0], 0.99) == 3.0
        assert Spread.of([]) is None
        assert Spread.of([4, 1, 3, 2]) == Spread(2.5, 2.5, pytest.approx(3.7), pytest.approx(3.97), 4)

    def test_hand_made_timelines_give_the_expected_figures(self):
        result = LoadResult.of(HAND_MADE, {"ttft": 0.25})
        assert (result.num_requests, result.num_answered, result.errors) == (4, 3, {"HTTP 429": 1})
        assert result.duration_s == 9.0
        assert (result.prompt_tokens, result.cached_tokens, result.output_tokens) == (30, 4, 6)
        assert result.time_to_first_token_ms.p50 == pytest.approx(200)
        assert result.time_to_first_token_ms.max == pytest.approx(300)
        assert result.inter_token_ms.mean == pytest.approx(400 / 3)
        assert result.per_output_token_ms.mean == pytest.approx((150 + 100) / 2)
        assert result.end_to_end_ms.max == pytest.approx(1000)
        assert result.send_lag_ms.max == pytest.approx(100)
        assert result.num_good == 2
        assert result.per_second(result.num_good) == pytest.approx(2 / 9)

    def test_objectives_are_parsed_and_applied(self):
        objectives = parse_objectives(["ttft:250,tpot:120", "e2el:450"])
        assert objectives == {"ttft": 0.25, "tpot": 0.12, "e2el": 0.45}
        assert [is_good(timeline, {"tpot": 0.12}) for timeline in HAND_MADE] == [False, True, True, False]
        assert [is_good(timeline, objectives) for timeline in HAND_MADE] == [False, False, False, False]
        assert parse_objectives([]) == {}
        for wrong in ("itl:3", "ttft", "ttft:x"):
            with pytest.raises(ValueError, match="must"):
                parse_objectives([wrong])

    def test_the_table_lists_every_figure_and_failures_first(self):
        text = load_table(LoadResult.of(HAND_MADE, {"ttft": 0.25}), {"ttft": 0.25}, max_concurrency=0)
        words = [row.split() for row in text.splitlines()]
        assert ["requests", "answered", "3", "0.33"] in words
        assert ["goodput", "(ttft", "≤", "250", "ms)", "2", "0.22"] in words
        assert ["time", "to", "first", "token", "200", "200", "280", "298", "300"] in words
        assert "FAILED 1 of 4, HTTP 429: full" in text
        assert "4 of the prompt tokens came from the server's prefix cache" in text
        assert "after schedule" in text

    def test_a_load_without_any_answer_has_a_table(self):
        assert "FAILED 1 of 1" in load_table(LoadResult.of(HAND_MADE[3:], {}), {}, 0)

    def test_a_sweep_has_one_line_per_rate(self):
        results = [LoadResult.of(HAND_MADE, {}), LoadResult.of(HAND_MADE[3:], {})]
        first, second = (row.split() for row in sweep_table([2.0, math.inf], results).splitlines()[1:3])
        assert (first[0], first[3], first[-1]) == ("2", "200", "1")
        assert (second[0], second[3], second[-1]) == ("inf", "-", "1")

    def test_a_plot_is_xml_with_a_point_for_each_value(self):
        results = [LoadResult.of(HAND_MADE, {"ttft": 1}), LoadResult.of(HAND_MADE[:2], {"ttft": 1})]
        document = xml.etree.ElementTree.fromstring(sweep_plot([2.0, math.inf], results))
        names = [element.tag.rpartition("}")[2] for element in document.iter()]
        assert names.count("circle") == 4 * 2 * 2
        assert any(element.text == "inf" for element in document.iter())
        empty = [LoadResult.of(HAND_MADE[3:], {})]
        xml.etree.ElementTree.fromstring(sweep_plot([2.0], empty))

    def test_numbers_have_three_significant_digits(self):
        assert [number(v) for v in (None, 0.0, 1.234, 12.34, 123.4, 12345.6)] == [
            "-", "0.00", "1.23", "12.3", "123", "12,346"
        ]  # fmt: skip
        assert table([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"
