"""The metrics of a server, under its own names and under vLLM's."""

import re

import msgspec
import pytest

from paged_serve.frontend.http.exchange.metrics import Metrics
from paged_serve.frontend.http.routes.operator import routes
from paged_serve.protocol.errors import NO_TOKEN, NO_VECTOR
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.stats import STEP_TOKENS, KVTierStats

from ...fake_engine import STATS
from ...http_server import Server


def test_metrics_have_the_usual_names(folder):
    server = Server(folder, options={"metrics_compat": "vllm"})
    server.complete()
    text = server.metrics()
    for line in (
        'paged:num_requests_running{engine="0",model_name="tiny"} 1.0',
        'paged:num_requests_waiting{engine="0",model_name="tiny"} 2.0',
        'paged:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25',
        'paged:generation_tokens_total{engine="0",model_name="tiny"} 20.0',
        'paged:request_success_total{engine="0",finished_reason="stop",frontend="0",model_name="tiny"} 1.0',
        'paged:time_to_first_token_seconds_count{engine="0",frontend="0",model_name="tiny"} 1.0',
        'vllm:request_generation_tokens_sum{engine="0",frontend="0",model_name="tiny"} 6.0',
        'paged:request_prefill_time_seconds_sum{engine="0",frontend="0",model_name="tiny"} 0.1',
    ):
        assert line in text
    assert "vllm:" not in Server(folder).metrics()


def test_metrics_with_the_vllm_prefix_are_all_vllm_names(folder):
    server = Server(folder, options={"metrics_compat": "vllm"})
    server.complete()
    server.ask("POST", "/v1/completions", {})  # a refusal is counted as well
    text = server.metrics()
    assert set(re.findall(r"^# TYPE vllm:(\w+)", text, re.M)) == {
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("prompt_tokens_total", "generation_tokens_total", "num_preemptions_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total"),
        *("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total"),
        *("spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_per_pos_total"),
        *("request_success_total", "admission_rejections_total"),
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds"),
        *("request_prompt_tokens", "request_generation_tokens", "request_params_n", "request_params_max_tokens"),
        *("request_num_preemptions", "request_prefill_kv_computed_tokens", "request_max_num_generation_tokens"),
        *("iteration_tokens_total", "prompt_tokens_cached_total", "prompt_tokens_by_source_total"),
        *("corrupted_requests_total", "cache_config_info"),
    }
    assert 'paged:iteration_tokens{engine="0",model_name="tiny"} 4.0' in text
    assert "vllm:iteration_tokens{" not in text  # in vLLM only the histogram has that name


def test_prompt_tokens_are_told_apart_by_where_they_come_from(folder):
    """Under vLLM's name they include those found in the cache, of which its boards show the share."""
    labels = 'engine="0",model_name="tiny"'
    text = Server(folder, options={"metrics_compat": "vllm"}).metrics()
    for line in (
        f"paged:prompt_tokens_total{{{labels}}} 10.0",
        f"vllm:prompt_tokens_total{{{labels}}} 18.0",
        f"vllm:prompt_tokens_cached_total{{{labels}}} 8.0",
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} 10.0',
        f'vllm:prompt_tokens_by_source_total{{{labels},source="local_cache_hit"}} 8.0',
    ):
        assert line in text
    assert text.count("# TYPE vllm:prompt_tokens_total counter") == 1


def test_steps_are_counted_by_their_tokens():
    counts = (3, 2, *([0] * (len(STEP_TOKENS) - 1)))
    stats = msgspec.structs.replace(STATS, step_tokens=19, steps_by_tokens=counts)
    text = Metrics("tiny").exposition(stats).decode()
    series = 'paged:iteration_tokens_total_bucket{engine="0",le="%s",model_name="tiny"} %s'
    for bound, count in (("1.0", "3.0"), ("8.0", "5.0"), ("16384.0", "5.0"), ("+Inf", "5.0")):
        assert series % (bound, count) in text
    assert 'paged:iteration_tokens_total_sum{engine="0",model_name="tiny"} 19.0' in text


def test_a_finished_request_is_measured_as_a_whole(folder):
    server = Server(folder)
    server.complete(n=2, prompt=["abc", "de"])
    text = server.metrics()
    for name, count, total in (
        ("request_prefill_kv_computed_tokens", 2, 3),  # one token of each prompt was cached
        ("request_max_num_generation_tokens", 2, 12),
        ("request_generation_tokens", 4, 24),
    ):
        assert f'paged:{name}_count{{engine="0",frontend="0",model_name="tiny"}} {count}.0' in text
        assert f'paged:{name}_sum{{engine="0",frontend="0",model_name="tiny"}} {total}.0' in text


def test_outputs_that_were_not_finite_are_counted():
    metrics = Metrics("tiny")
    for error in ("a worker failed", NO_TOKEN, NO_VECTOR):
        metrics.failed(error)
    text = metrics.exposition(STATS).decode()
    assert 'paged:corrupted_requests_total{engine="0",frontend="0",model_name="tiny"} 2.0' in text
    assert 'finished_reason="error",frontend="0",model_name="tiny"} 3.0' in text


def test_routers_find_the_size_of_the_cache():
    text = Metrics("tiny", block_size=16).exposition(STATS).decode()
    assert 'paged:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0' in text


def test_metrics_of_a_tier_appear_with_the_tier_and_have_no_vllm_name():
    assert b"kv_tier" not in Metrics("tiny").exposition(STATS)
    tier = KVTierStats(7, loaded_blocks=5, load_s=0.25)
    text = Metrics("tiny", compat="vllm").exposition(msgspec.structs.replace(STATS, kv_tier=tier)).decode()
    assert 'paged:kv_tier_used_bytes{engine="0",model_name="tiny"} 7.0' in text
    assert 'paged:kv_tier_loaded_blocks_total{engine="0",model_name="tiny"} 5.0' in text
    assert 'paged:kv_tier_load_seconds_total{engine="0",model_name="tiny"} 0.25' in text
    assert "vllm:kv_tier" not in text


@pytest.mark.parametrize("state", [{"ready": False}, {"answers": False}])
def test_an_engine_that_does_not_answer_has_no_figures(folder, monkeypatch, state):
    """Its last report would hide from an alert that it is away, and its counters may be lower than at the last scrape,
    which Prometheus takes for a restart."""
    monkeypatch.setattr(routes, "ENGINE_WITHIN_S", 0.01)
    server = Server(folder)
    server.complete()
    for name, value in state.items():
        setattr(server.engine, name, value)
    text = server.metrics()
    assert "paged:num_requests_running" not in text
    assert "paged:generation_tokens_total" not in text
    assert 'paged:request_success_total{engine="0",finished_reason="stop",frontend="0",model_name="tiny"} 1.0' in text


def test_a_counter_exists_before_its_first_event():
    """Prometheus sees no increase in a series that begins with 1, so an alert would miss the first error."""
    text = Metrics("tiny").exposition(STATS).decode()
    for reason in FinishReason:
        series = f'engine="0",finished_reason="{reason.api_name}",frontend="0",model_name="tiny"'
        assert f"paged:request_success_total{{{series}}} 0.0" in text
    for name in ("invalid", "overloaded", "expired", "unavailable"):
        series = f'engine="0",frontend="0",model_name="tiny",reason="{name}"'
        assert f"paged:admission_rejections_total{{{series}}} 0.0" in text


def test_a_probe_is_not_counted_as_a_refused_request(folder):
    server = Server(folder)
    server.engine.ready = False
    assert server.ask("GET", "/ready").status_code == 503
    assert 'reason="unavailable"} 0.0' in server.metrics()


def test_each_frontend_labels_its_own_counters(folder):
    text = {index: Metrics("tiny", index=index).exposition(STATS).decode() for index in (0, 3)}
    assert 'paged:request_params_n_count{engine="0",frontend="3",model_name="tiny"}' in text[3]
    engine_wide = [line for line in text[0].splitlines() if "frontend=" not in line and not line.startswith("#")]
    assert len(engine_wide) == 17
    assert all(line in text[3] for line in engine_wide)
