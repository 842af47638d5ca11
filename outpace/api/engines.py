"""How other engines are started with a drafter: one entry per engine, with the command that it is given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from outpace.models.names import resolve

TRANSFORMERS = "transformers"
NUM_TOKENS = 5  # of a draft, in commands


@dataclass(frozen=True)
class Engine:
    """An engine that takes drafters from outside."""

    title: str
    draft_model: str  # its name for drafting with a draft model
    # (name or folder of the target, its name for the method, folder of the drafter, tokens of a draft) -> the
    # command, or program, that runs the target with the drafter
    command: Callable[[str, str, str, int], str]


def vllm_command(target: str, method: str, folder: str, num_tokens: int) -> str:
    config = {"method": method, "model": folder, "num_speculative_tokens": num_tokens}
    return f"vllm serve {shlex.quote(resolve(target))} --speculative-config {shlex.quote(json.dumps(config))}"


def sglang_command(target: str, method: str, folder: str, num_tokens: int) -> str:
    # a chain, as in vLLM: whether a tree pays depends on the machine and its load
    return (
        f"python -m sglang.launch_server --model-path {shlex.quote(resolve(target))} "
        f"--speculative-algorithm {method} --speculative-draft-model-path {shlex.quote(folder)} "
        f"--speculative-num-steps {num_tokens} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {num_tokens + 1}"
    )


def transformers_program(target: str, method: str, folder: str, num_tokens: int) -> str:
    if method:
        imported = ["import outpace", "from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
        drafts = f'custom_generate=outpace.hf("{method}", head="{folder}")'
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
