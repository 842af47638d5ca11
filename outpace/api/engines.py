"""How other engines are started with a drafter: one entry per engine, with the command that it is given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outpace.models.names import resolve

TRANSFORMERS = "transformers"
NUM_TOKENS = 5  # of a draft, in commands


@dataclass(frozen=True)
class Drafting:
    """How an engine drafts with a drafter."""

    method: str  # the engine's name for it
    num_tokens: int  # of a draft
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # further ones, of vLLM


@dataclass(frozen=True)
class Engine:
    """An engine that takes drafters from outside."""

    title: str
    draft_model: str  # its name for drafting with a draft model
    # (name or folder of the target, folder of the drafter, how it drafts) -> the command, or program, that
    # runs the target with the drafter
    command: Callable[[str, str, Drafting], str]


def vllm_command(target: str, folder: str, drafting: Drafting) -> str:
    config = {"method": drafting.method, "model": folder, "num_speculative_tokens": drafting.num_tokens}
    config |= drafting.options
    return f"vllm serve {shlex.quote(resolve(target))} --speculative-config {shlex.quote(json.dumps(config))}"


def sglang_command(target: str, folder: str, drafting: Drafting) -> str:
    num_tokens = drafting.num_tokens
    # a chain, as in vLLM: whether a tree pays depends on the machine and its load
    return (
        f"python -m sglang.launch_server --model-path {shlex.quote(resolve(target))} "
        f"--speculative-algorithm {drafting.method} --speculative-draft-model-path {shlex.quote(folder)} "
        f"--speculative-num-steps {num_tokens} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {num_tokens + 1}"
    )


def transformers_program(target: str, folder: str, drafting: Drafting) -> str:
    if drafting.method:
        imported = ["import outpace", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
        drafts = f'custom_generate=outpace.hf("{drafting.method}", head="{folder}")'
    else:
        imported = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
        drafts = f'assistant_model=AutoModelForCausalLM.from_pretrained("{folder}")'
    lines = [
        *imported,
        f'model = AutoModelForCausalLM.from_pretrained("{resolve(target)}")',
        f'tokenizer = AutoTokenizer.from_pretrained("{resolve(target)}")',
        'inputs = tokenizer("def add(a, b):", return_tensors="pt")',
        f"output = model.generate(**inputs, max_new_tokens=64, {drafts})",
        "print(tokenizer.decode(output[0]))",
    ]
    return "\n".join(lines)


ENGINES = {
    "vllm": Engine("vLLM", "draft_model", vllm_command),
    "sglang": Engine("SGLang", "STANDALONE", sglang_command),
    TRANSFORMERS: Engine("transformers", "", transformers_program),
}
