"""vLLM on a CPU as a worker: plain decoding, a draft model, n-gram prompt lookup, or any other drafter that
its configuration names, whose steps it can time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

SLACK = 8  # extra positions in max_model_len beyond the longest request
NATIVE = {
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
    "float16": ("avx512_fp16", "amx_fp16", "fphp"),
    "float32": (),
}
SETTINGS = {"top_k", "top_p", "min_p", "repetition_penalty"}
SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def start(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], Any]]:
    """Load the models; returns the precision and a function that runs a request. With `timed` in the
    settings, a request for `times` returns those of the steps since the last one. ValueError for an
    unsupported dtype."""
    if settings["dtype"] not in NATIVE:
        raise ValueError(f"vLLM has no {settings['dtype']}: use --dtype {', '.join(NATIVE)}")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # to send functions to the process of the model
    vllm = import_module("vllm")
    depth = settings["depth"] or 0
    model = vllm.LLM(
        model=settings["target"],
        dtype=settings["dtype"],
        max_model_len=min(settings["needed_tokens"] + depth + SLACK, settings["max_length"] or 1 << 30),
        max_num_seqs=settings["batch"],
        speculative_config=settings["config"] if "config" in settings else speculation(settings),
        additional_config=settings.get("additional", {}),
        # torch.compile, vLLM's default, needs a C++ compiler
        enforce_eager=settings["eager"] or not (shutil.which("g++") or shutil.which("clang++")),
        enable_prefix_caching=False,  # so that every prompt is prefilled, as by all contenders
        seed=0,
        **({"kv_cache_memory_bytes": settings["kv_bytes"]} if "kv_bytes" in settings else {}),
    )
    if settings.get("timed"):
        model.collective_rpc(time_steps)

    def run(request: Mapping[str, Any]) -> Any:
        if request.get("times"):
            return model.collective_rpc(taken_times)[0]
        row_params = [parameters(vllm, settings, request, seed) for seed in request["seeds"]]
        prompts = [{"prompt_token_ids": list(prompt)} for prompt in request["prompts"]]
        return [
            list(done.outputs[0].token_ids) for done in model.generate(prompts, row_params, use_tqdm=False)
        ]

    return {"precision": precision(str(model.llm_engine.model_config.dtype).removeprefix("torch."))}, run


def time_steps(worker: Any) -> None:
    """In the process of the model: time the target's forwards and the drafter, step by step."""
    from time import perf_counter

    runner = worker.model_runner
    times: dict[str, list[float]] = {"forward": [], "propose": []}
    runner.times_of_steps = times

    def timed(owner: Any, name: str, found: list[float]) -> None:
        inner = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                found.append(perf_counter() - began)

        setattr(owner, name, call)

    timed(runner, "_model_forward", times["forward"])
    if hasattr(runner, "drafter"):
        timed(runner.drafter, "propose", times["propose"])


def taken_times(worker: Any) -> dict[str, list[float]]:
    """In the process of the model: the times in seconds since the last call."""
    times = worker.model_runner.times_of_steps
    taken = {name: list(each) for name, each in times.items()}
    for each in times.values():
        each.clear()
    return taken


def speculation(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The speculative_config of a mode; None for plain decoding. Draft tokens are greedy, which is vLLM's
    default."""
    if settings["mode"] == "draft":
        return {
            "method": "draft_model",
            "model": settings["draft"],
            "num_speculative_tokens": settings["depth"],
        }
    if settings["mode"] == "prompt-lookup":
        return {
            "method": "ngram",
            "num_speculative_tokens": settings["depth"],
            "prompt_lookup_max": settings["max_ngram"],
            "prompt_lookup_min": 1,
        }
    return None


def parameters(vllm: Any, settings: Mapping[str, Any], request: Mapping[str, Any], seed: int) -> Any:
    """vLLM's SamplingParams of one row; NotImplementedError for a parameter that is not supported."""
    given = request["settings"]
    if unknown := set(given) - SETTINGS:
        raise NotImplementedError(f"the vLLM peer does not support {', '.join(sorted(unknown))}")
    if "min_p" in given and settings["mode"] != "plain":
        raise NotImplementedError("vLLM has no min_p with speculative decoding")
    return vllm.SamplingParams(
        temperature=request["temperature"],
        max_tokens=request["max_tokens"],
        seed=seed if request["temperature"] > 0 else None,
        ignore_eos=True,  # stop tokens come from the measurement, not from the checkpoint
        stop_token_ids=request["stop"],
        detokenize=False,
        **given,
    )


def precision(dtype: str) -> str:
    """The dtype of the loaded model, with `not native` if the CPU has no instructions for it."""
    words = SHORT.get(dtype, dtype)
    wanted = NATIVE.get(dtype, ())
    return words if not wanted or flags() & set(wanted) else f"{words}, not native"


def flags() -> set[str]:
    """The CPU's feature flags in /proc/cpuinfo; empty where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next(
        (set(line.split()) for line in lines if line.lower().startswith(("flags", "features"))), set()
    )
