"""What tests of heads without a KV cache share: a small model, its hidden states, and targets that count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.models.heads.position_head import PositionHead
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.base.autoregressive import autoregressive

VOCAB, COUNTED = 12, 7
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [7], [1, 1])
GREEDY = [SamplingParams(max_tokens=tokens) for tokens in (14, 9, 11)]

# hidden state, tokens read so far (the root first) -> logits of the next token
Reference = Callable[[Tensor, Sequence[int]], Tensor]


@cache
def small() -> HFTarget:
    """A transformers model of `VOCAB` tokens in float64."""
    target = transformers_models(vocab=VOCAB).target
    assert isinstance(target, HFTarget)
    return target


@torch.no_grad()
def hidden_states(text: Tensor) -> Tensor:  # (T,) -> (T, D)
    """The inputs of the LM head at a text's tokens, computed without the engine."""
    return small().model.base_model(text[None], use_cache=False).last_hidden_state[0]


def steps_of(
    parts: Parts,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    sampling: Sequence[SamplingParams] = GREEDY,
    prompt_tokens: int = 512,
) -> tuple[list[list[int]], list[Step]]:
    """The generated texts, and the steps that drafted."""
    found: list[Step] = []
    generated = texts(parts, prompts, sampling, observe=found.append, prompt_tokens=prompt_tokens)
    return generated, [step for step in found if step.draft.forwards]


def plain(target: HFTarget | TableTarget, sampling: Sequence[SamplingParams] = GREEDY) -> list[list[int]]:
    return texts(autoregressive.build(target), PROMPTS, sampling)


@torch.no_grad()
def check_ranks(
    steps: Sequence[Step], reference: Reference, before: Callable[[Tensor], Tensor] = hidden_states
) -> int:
    """Assert that the children of every node are the tokens that the reference ranks first, in order, by the
    hidden state at the token before the root; returns the number of nodes compared."""
    compared = 0
    for step in steps:
        tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
        for row, text in enumerate(step.ctx.tokens):
            if len(text) == 1:
                continue  # no hidden state is known
            hidden = before(text[:-1])[-1]
            for node in forest.nodes[row]:
                if children := forest.children[node]:
                    logits = reference(hidden, [tokens[each] for each in forest.path(node)])
                    expected = logits.topk(len(children)).indices.tolist()
                    assert [tokens[child] for child in children] == expected
                    compared += len(children)
    return compared


def counting() -> TableTarget:
    """A table model whose most probable text counts: 0 1 2 ... 6 0 1 ...; hidden states are its logits."""
    target = TableTarget(COUNTED, order=1, seed=1)
    after = torch.arange(COUNTED).roll(-1)
    target.logits = torch.full_like(target.logits, -1.0)
    for state in range(len(target.logits)):
        target.logits[state, after[state % COUNTED]] = 8.0
    return target


def adding(count: int) -> Tensor:
    """The matrix that maps the one-hot vector of token t to that of token t + `count`."""
    return torch.eye(COUNTED, dtype=torch.float64).roll(count, 0)


def zeroed(head: PositionHead) -> PositionHead:
    """The head with all weights and biases 0."""
    for parameter in head.own.values():
        parameter.data.zero_()
    return head


def share_accepted(parts: Parts) -> float:
    """Share of the draft tokens that were accepted in greedy decoding, where the text did not end."""
    _, steps = steps_of(parts, [[0, 1, 2]], [SamplingParams(max_tokens=22)])
    drafted = sum(len(step.draft.tree) - 1 for step in steps)
    return sum(len(step.generated[0]) - 1 for step in steps) / drafted
