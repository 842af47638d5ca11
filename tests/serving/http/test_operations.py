"""Models, tokens, health and metrics."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan
from outpace.drafters.model.draft_model import DraftModel
from tests.tiers import slow


def values(running: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of /metrics, by name and labels."""
    _, text, headers = running.call("/metrics")
    assert headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_model_is_listed(client: Any, running: Any) -> None:
    [model] = client.models.list().data
    assert model.id == "zoo" and model.max_model_len == 2048 and model.chat is True
    assert model.methods == ["speculative-sampling", "prompt-lookup"]
    assert client.models.retrieve("zoo").id == "zoo"
    assert running.call("/v1/models/other")[0] == 404
    assert running.call("/health")[:2] == (200, {"status": "ok"})


def test_text_becomes_tokens_and_text_again(running: Any, model: Any) -> None:
    tokens = model.tokenizer("def add")["input_ids"]
    expected = {"count": len(tokens), "max_model_len": 2048, "tokens": tokens}
    assert running.call("/tokenize", {"prompt": "def add"})[1] == expected
    assert running.call("/detokenize", {"tokens": tokens})[1] == {"prompt": "def add"}
    assert running.call("/tokenize", {"prompt": ""})[1]["tokens"] == []
    messages = [{"role": "user", "content": "Hi"}]
    found = running.call("/tokenize", {"messages": messages})[1]["tokens"]
    encoded = model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert found == encoded["input_ids"]
    for path, body, param in (
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "a", "messages": messages}, None),
        ("/detokenize", {"tokens": [4096]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ):
        status, error, _ = running.call(path, body)
        assert (status, error["error"]["param"]) == (400, param)


def test_metrics_count_what_was_generated(running: Any, client: Any, wait: Any) -> None:
    wait(lambda: not running.admission.num_active and not running.service.engine.num_running)
    before = values(running)
    body = {"model": "zoo", "prompt": "def add(a, b):", "temperature": 0, "max_tokens": 12}
    found = client.completions.create(**body, extra_body={"include_metrics": True})
    after = values(running)

    def more(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return after[key] - before.get(key, 0)

    drafts, own = found.metrics["speculative_decoding"], {"model_name": "zoo"}
    for name, value in (
        ("prompt_tokens_total", found.usage.prompt_tokens),
        ("generation_tokens_total", 12),
        ("time_to_first_token_seconds_count", 1),
    ):
        assert more(f"outpace_{name}") == more(f"vllm:{name}", **own) == value
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert more(f"vllm:spec_decode_{name}_total", **own) == drafts[name] > 0
    for position, count in enumerate(drafts["num_accepted_tokens_per_pos"]):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert more(name, position=str(position), **own) == count
    assert more("outpace_requests_total", outcome="length") == 1
    assert more("outpace_request_seconds_count") == more("vllm:e2e_request_latency_seconds_count", **own) == 1
    assert more("outpace_inter_token_seconds_count") > 0
    parts = ("time_to_first_token", "inter_token")  # of the time of the request
    seconds = [more(f"outpace_{each}_seconds_sum") for each in (*parts, "request")]
    assert 0 < sum(seconds[:2]) <= seconds[2]
    for name in ("requests_running", "requests_waiting", "kv_cache_bytes", "draft_kv_cache_bytes"):
        assert after[f"outpace_{name}", frozenset()] == 0
    for name in ("outpace_preemptions_total", "outpace_drafter_errors_total"):
        assert after[name, frozenset()] == 0
    assert running.call("/v1/nothing")[0] == 404
    key = ("outpace_http_errors_total", frozenset({("status", "404")}))
    assert values(running)[key] == after.get(key, 0) + 1


def test_draft_tokens_after_the_end_of_a_text_and_steps_without_drafts_are_not_counted(
    running: Any, client: Any, model: Any
) -> None:
    end, words = model.tokenizer.eos_token_id, model.tokenizer("def add(a, b):")["input_ids"]
    body = {"model": "zoo", "prompt": [*words, end, end, end, *words], "logit_bias": {str(end): 100}}
    for speculation, num_drafts in (({"method": "prompt-lookup"}, 1), (False, 0)):
        before, _ = as_vllm_reads_it(running.call("/metrics")[1])
        extra = {"speculation": speculation, "include_metrics": True}
        found = client.completions.create(**body, temperature=0, extra_body=extra)
        after, _ = as_vllm_reads_it(running.call("/metrics")[1])
        counts = found.metrics["speculative_decoding"]
        assert found.usage.completion_tokens == 1 and counts["num_drafts"] == num_drafts
        assert counts["num_accepted_tokens"] == num_drafts <= counts["num_draft_tokens"]
        assert {name: after[name] - before[name] for name in after} == {name: counts[name] for name in after}


def test_a_request_whose_client_left_has_no_time_of_an_answer(running: Any, client: Any, wait: Any) -> None:
    before = values(running)
    body = {"model": "zoo", "prompt": "def f(", "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
    with client.completions.create(**body, stream=True) as stream:
        next(iter(stream))
    cancelled = ("outpace_requests_total", frozenset({("outcome", "cancelled")}))
    wait(lambda: values(running).get(cancelled, 0) == before.get(cancelled, 0) + 1)
    time = ("outpace_request_seconds_count", frozenset[tuple[str, str]]())
    assert values(running)[time] == before[time]


def as_vllm_reads_it(text: str) -> tuple[dict[str, int], dict[int, int]]:
    """The totals and the accepted tokens by position, as `vllm bench serve` reads them: a value belongs to
    the counter whose name its line has anywhere, and all values of a counter are added."""
    totals = {"num_drafts": 0, "num_draft_tokens": 0, "num_accepted_tokens": 0}
    positions: dict[int, int] = {}
    for line in text.splitlines():
        if line.startswith("vllm:spec_decode"):
            value = int(float(line.split()[-1]))
            if "num_accepted_tokens_per_pos" in line:
                position = int(line.partition('position="')[2].partition('"')[0])
                positions[position] = positions.get(position, 0) + value
            else:
                totals[next(name for name in totals if name in line)] += value
    return totals, positions


@pytest.mark.slow
def test_vllms_benchmark_reads_our_acceptance(model: Any, serve: Any) -> None:
    with serve(model) as running:
        before, before_at = as_vllm_reads_it(running.call("/metrics")[1])
        found = running.client().completions.create(
            model="zoo",
            prompt="def add(a, b):",
            max_tokens=30,
            temperature=0,
            extra_body={"ignore_eos": True, "include_metrics": True},
        )
        after, after_at = as_vllm_reads_it(running.call("/metrics")[1])
    own = found.metrics["speculative_decoding"]
    more = {name: after[name] - before[name] for name in after}
    assert more == {name: own[name] for name in more} and more["num_drafts"] > 0
    assert before["num_drafts"] == 0  # a counter that is missing would mean that speculation is off
    accepted_at = [after_at[each] - before_at.get(each, 0) for each in sorted(after_at)]
    assert accepted_at == own["num_accepted_tokens_per_pos"]
    assert 1 + more["num_accepted_tokens"] / more["num_drafts"] == own["mean_acceptance_length"]


@pytest.mark.slow
def test_a_drafter_that_raises_ends_the_drafts_of_one_request_only(
    model: Any, serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    propose, first = DraftModel.propose, model.tokenizer("import")["input_ids"][0]

    def broken(drafter: DraftModel, ctx: Context, plan: Plan) -> Draft:
        if any(int(tokens[0]) == first for tokens in ctx.tokens):
            raise RuntimeError("broken")
        return propose(drafter, ctx, plan)

    body = {"model": "zoo", "max_tokens": 30, "temperature": 0}
    extra = {"ignore_eos": True, "include_metrics": True}
    with serve(model) as running:
        client = running.client()
        expected = client.completions.create(**body, prompt="import os", extra_body=extra).choices[0].text
        monkeypatch.setattr(DraftModel, "propose", broken)
        with client.completions.create(**body, prompt="def f(", stream=True, extra_body=extra) as stream:
            chunks = iter(stream)
            next(chunks)
            bad = client.completions.create(**body, prompt="import os", extra_body=extra)
            *_, last = chunks
        errors = values(running)["outpace_drafter_errors_total", frozenset()]
    assert bad.choices[0].text == expected and bad.choices[0].finish_reason == "length"
    assert bad.metrics["speculative_decoding"]["num_drafts"] == 0
    assert last.metrics["speculative_decoding"]["num_drafts"] > 0
    assert errors == 1 and "its request goes on without drafts" in caplog.text and "broken" in caplog.text


@pytest.mark.parametrize("prefix_cache", [True, slow(False)])
def test_prompt_tokens_that_were_in_memory_are_counted(model: Any, serve: Any, prefix_cache: bool) -> None:
    body = {"model": "zoo", "temperature": 0, "max_tokens": 8}
    question = [{"role": "user", "content": "Say hello to Noah."}]
    with serve(model, prefix_cache=prefix_cache) as running:
        client, found = running.client(), []
        for prompt in ("def add(a, b):", "def add(a, b):", "def add(a, c):"):
            found.append(client.completions.create(prompt=prompt, **body))
        assert found[0].choices[0].text == found[1].choices[0].text
        num = found[0].usage.prompt_tokens
        cached = [each.usage.prompt_tokens_details.cached_tokens for each in found]
        chat = [client.chat.completions.create(messages=question, **body).usage for _ in range(2)]
        *_, last = client.chat.completions.create(
            messages=question, stream=True, stream_options={"include_usage": True}, **body
        )
        response = client.responses.create(model="zoo", input=question, max_output_tokens=8).usage
        after = values(running)
    read = [
        chat[0].prompt_tokens - cached
        for cached in (
            chat[1].prompt_tokens_details.cached_tokens,
            last.usage.prompt_tokens_details.cached_tokens,
            response.input_tokens_details.cached_tokens,
        )
    ]
    queried = sum(each.usage.prompt_tokens for each in found) + 4 * chat[0].prompt_tokens
    hits = sum(cached) + chat[0].prompt_tokens_details.cached_tokens + 3 * chat[0].prompt_tokens - sum(read)
    if prefix_cache:
        assert cached[:2] == [0, num - 1] and 0 < cached[2] < num - 1
        assert read == [1, 1, 1]  # the last token, after which the target's output is needed
        assert after["outpace_prefix_cache_bytes", frozenset()] > 0
    else:
        assert cached == [0, 0, 0] and read == [chat[0].prompt_tokens] * 3
        assert after["outpace_prefix_cache_bytes", frozenset()] == 0
        queried = 0  # nothing is looked up
    own = frozenset({("model_name", "zoo")})
    for name, other, value in (("queried", "queries", queried), ("hit", "hits", hits)):
        assert after[f"outpace_prefix_cache_{name}_tokens_total", frozenset()] == value
        assert after[f"vllm:prefix_cache_{other}_total", own] == value


def test_samples_of_a_prompt_count_what_none_of_them_had_to_read(client: Any) -> None:
    first, again = (
        client.completions.create(model="zoo", prompt="while total < 17:", n=3, max_tokens=4).usage
        for _ in range(2)
    )
    assert first.prompt_tokens_details.cached_tokens == 0
    # each of the samples reads the last token, and the prompt counts once
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 3


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_page_loads_scripts_from_elsewhere(running: Any, path: str) -> None:
    assert running.call(path)[0] == 404
