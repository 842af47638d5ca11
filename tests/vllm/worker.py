"""Run by vLLM's Python: generates greedily, plainly or with a drafter, and prints the tokens, vLLM's counters
and what the proposer holds at the end, as JSON."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Standard input: target, config (speculative_config or null), additional (additional_config), prompts
    (token ids), max_tokens, engine (further arguments of vLLM's), schedule (null, or per prompt the step at
    which its request joins and the number of tokens after which it is aborted, or null)."""
    asked: dict[str, Any] = json.load(sys.stdin)
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # to send `held` to the process of the model
    vllm = import_module("vllm")
    model = vllm.LLM(
        model=asked["target"],
        dtype="float32",
        speculative_config=asked["config"],
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        additional_config=asked["additional"],
        **{"max_model_len": 512, "max_num_seqs": 8, **asked["engine"]},
    )
    params = vllm.SamplingParams(temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    if asked["schedule"] is None:
        done = model.generate(prompts, params, use_tqdm=False)
        tokens = [list(each.outputs[0].token_ids) for each in done]
    else:
        tokens = scheduled(model.llm_engine, prompts, params, asked["schedule"])
    counts = {each.name: each.value for each in model.get_metrics() if hasattr(each, "value")}
    found = {
        "tokens": tokens,
        "drafts": counts.get("vllm:spec_decode_num_drafts", 0),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
        "preemptions": counts["vllm:num_preemptions"],
        "held": model.collective_rpc(held)[0],
    }
    print("RESULT " + json.dumps(found), flush=True)


def scheduled(
    engine: Any, prompts: list[Any], params: Any, schedule: list[tuple[int, int | None]]
) -> list[list[int]]:
    """The tokens of requests that join at their steps and are aborted after their numbers of tokens."""
    tokens: dict[int, list[int]] = {index: [] for index in range(len(prompts))}
    waiting, step = set(tokens), 0
    while waiting or engine.has_unfinished_requests():
        for index in sorted(waiting):
            if schedule[index][0] <= step:
                engine.add_request(str(index), prompts[index], params)
                waiting.remove(index)
        for output in engine.step():
            index = int(output.request_id)
            tokens[index] = list(output.outputs[0].token_ids)
            limit = schedule[index][1]
            if limit is not None and len(tokens[index]) >= limit and not output.finished:
                engine.abort_request([output.request_id])
        step += 1
    return list(tokens.values())


def held(worker: Any) -> list[int]:
    """Of outpace's proposer in vLLM's worker: its requests and rows, after the step in which it hears that
    the last request has ended; empty for other drafters."""
    drafter = getattr(worker.model_runner, "drafter", None)
    if not hasattr(drafter, "_requests"):
        return []
    drafter.propose([], [], [])
    return [len(drafter._requests), len(drafter._rows)]


if __name__ == "__main__":
    main()
