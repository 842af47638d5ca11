"""vLLM's counters of speculative decoding."""

from __future__ import annotations

import pytest

from benchmarks.load.speculation import SpeculationCounters, parse_counters

METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a \\"quoted\\" name"} 6.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="b"} 4.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="b"} 1.7e+09
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="b"} 30.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="b"} 15.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="b",position="0"} 9.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop"} 3.0
"""
COUNTERS = SpeculationCounters(10, 30, 15)


def test_counters_are_summed_over_engines() -> None:
    assert parse_counters(METRICS) == COUNTERS


def test_a_server_without_speculation_has_none() -> None:
    assert parse_counters("# TYPE other_total counter\nother_total 1.0\n") is None


def test_rates_and_differences() -> None:
    assert COUNTERS.acceptance_rate == 0.5 and COUNTERS.mean_acceptance_length == 2.5
    nothing = SpeculationCounters(0, 0, 0)
    assert nothing.acceptance_rate is None and nothing.mean_acceptance_length is None
    before = SpeculationCounters(4, 12, 5)
    assert COUNTERS.since(before) == SpeculationCounters(6, 18, 10)
    assert COUNTERS.since(before) + before == COUNTERS


def test_a_malformed_counter() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse_counters("vllm:spec_decode_num_drafts_total many\n")
