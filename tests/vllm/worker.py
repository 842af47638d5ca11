"""Run by vLLM's Python: generates greedily, plainly or with a drafter, and prints the tokens and what was
accepted as JSON."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Standard input: target, config (speculative_config or null), additional (additional_config), prompts
    (token ids), max_tokens."""
    asked: dict[str, Any] = json.load(sys.stdin)
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    vllm = import_module("vllm")
    model = vllm.LLM(
        model=asked["target"],
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        speculative_config=asked["config"],
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        additional_config=asked["additional"],
    )
    params = vllm.SamplingParams(temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    done = model.generate(prompts, params, use_tqdm=False)
    counts = {each.name: each.value for each in model.get_metrics() if hasattr(each, "value")}
    found = {
        "tokens": [list(each.outputs[0].token_ids) for each in done],
        "drafts": counts.get("vllm:spec_decode_num_drafts", 0),
        "accepted": counts.get("vllm:spec_decode_num_accepted_tokens", 0),
    }
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
