"""Print the table of docs/sampling.md: mean acceptance length of speculative sampling with a drafter that
applies penalties, bad words and grammars of the request, and with one that does not.

Uses the models in the package, five draft tokens per step. Run `python scripts/settings_acceptance.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import outpace
from outpace.api.settings import resolve_settings
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.sampling.target_probs import LazyTargetProbs

PROMPTS, TOKENS = 12, 96
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z ]{3,40}$"}, "year": {"type": "integer"}},
    "required": ["name", "year"],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition_penalty 1.1": {"repetition_penalty": 1.1},
    "repetition_penalty 1.3": {"repetition_penalty": 1.3},
    "presence_penalty 1": {"presence_penalty": 1.0},
    "frequency_penalty 1": {"frequency_penalty": 1.0},
    "bad_words self, return": {"bad_words": ["self", "return"]},
    "json_schema": {"json_schema": SCHEMA},
}


class WithoutSettings:
    """Wraps a drafter and hides penalties, logit bias, bad words and grammar of the request from it."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.want, self.claims = inner, inner.want, inner.claims
        self.observe, self.release = inner.observe, inner.release

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        plain = tuple(params.without_logit_changes for params in ctx.sampling)
        return self._inner.propose(replace(ctx, sampling=plain), plan)


def acceptance(parts: Parts, prompts: Sequence[torch.Tensor], row_params: Sequence[SamplingParams]) -> float:
    """Mean acceptance length: mean number of tokens per speculative step, bonus token included."""
    steps = accepted = 0
    for step in Session(parts, prompts, row_params, LazyTargetProbs).steps():
        forest = step.draft.tree.forest
        for row, leaf in enumerate(step.verdict.leaf):
            if len(forest.nodes[row]) > 1 and step.ctx.committed[row] >= step.ctx.prompt_lengths[row]:
                steps += 1
                accepted += min(forest.depths[leaf], len(step.generated[row]))
    return 1 + accepted / steps if steps else 1.0


def rows(target: Any, draft: Any, prompts: Sequence[torch.Tensor]) -> Iterator[str]:
    vocab = target.target.vocab
    for name, requested in SETTINGS.items():
        cells = []
        for temperature in (0.0, 1.0):
            for hidden in (False, True):
                params = {name: value for name, value in requested.items() if name != "json_schema"}
                settings = resolve_settings(
                    {"temperature": temperature, "max_tokens": TOKENS, **params},
                    None,
                    target.tokenizer,
                    vocab=vocab,
                    json_schema=requested.get("json_schema"),
                )
                row_params = [settings.row_params(seed, TOKENS) for seed in range(len(prompts))]
                parts = outpace.recipes.get("speculative-sampling")(target.target, draft=draft.target)
                parts = replace(parts, drafter=WithoutSettings(parts.drafter)) if hidden else parts
                cells.append(f"{acceptance(parts, prompts, row_params):.2f}")
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    folder = Path(outpace.__file__).parent / "bench" / "prompts" / "code.jsonl"
    lines = folder.read_text(encoding="utf-8").splitlines()[:PROMPTS]
    target, draft = (outpace.load(f"zoo:{name}", dtype="float32") for name in ("target", "draft"))
    texts = [json.loads(line)["prompt"] for line in lines]
    prompts = [torch.tensor(target.tokenizer(text)["input_ids"]) for text in texts]
    print(
        "| settings | T = 0, followed | not followed | T = 1, followed | not followed "
        "|\n|---|---|---|---|---|"
    )
    for row in rows(target, draft, prompts):
        print(row, flush=True)


if __name__ == "__main__":
    main()
