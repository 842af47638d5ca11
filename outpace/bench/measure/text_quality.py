"""What generated texts are worth to the target, and whether they are right: for methods whose output has
another distribution than the target's.

Letters: T tokens of a text, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outpace.api.majority_vote import NUMBER, answer_in
from outpace.core.context import Context
from outpace.core.contracts import Cache, Target
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.sampling.adjust import Adjuster

AT_ONCE = 64  # tokens of a text whose distributions are computed together
A_NUMBER = re.compile(NUMBER)


@dataclass(frozen=True)
class TextQuality:
    """One generated text, as the target sees it."""

    tokens: int
    loss: float  # sum of -log p in nats, where p is the target's distribution at temperature 1
    unlike: int  # tokens that are not the target's most probable ones after the text before them
    right: bool | None  # whether it has the known answer; None: none is known


@torch.inference_mode()
def text_quality(
    target: Target,
    prompt: Tensor,  # (P,) int64
    text: Sequence[int],  # (T,) generated tokens, at least one
    sampling: SamplingParams,
    right: bool | None = None,
) -> TextQuality:
    """The quality of one text, from one plain forward over prompt and text without drafts.

    `loss` is that of the model itself, without any sampling parameter. The most probable tokens are those
    after the parameters that change logits, as penalties do; of several equally probable ones each is."""
    cache = target.open(1, len(prompt) + len(text))
    read = torch.cat([prompt[-1:], torch.tensor(text[:-1], dtype=torch.int64)])
    tree = TokenTree(read, Forest.chain((len(text) - 1,)))
    logits = target.score(tree, [0], cache, gap=[prompt[:-1]]).logits
    assert logits is not None
    adjust = Adjuster(_context(cache, prompt, len(text), sampling)) if sampling.changes_logits else None
    loss, unlike = 0.0, 0
    for start in range(0, len(text), AT_ONCE):
        rows = logits[start : start + AT_ONCE].float()
        own = torch.tensor(text[start : start + AT_ONCE], device=rows.device)[:, None]
        loss -= float(rows.log_softmax(-1).gather(1, own).double().sum())
        if adjust is not None:
            ends = range(start, start + len(rows))
            rows = adjust(rows, [0] * len(rows), [text[:end] for end in ends])
        unlike += int((rows.gather(1, own)[:, 0] < rows.amax(1)).sum())
    return TextQuality(len(text), loss, unlike, right)


def _context(cache: Cache, prompt: Tensor, new: int, sampling: SamplingParams) -> Context:
    """The state after this prompt, of a request for `new` tokens."""
    length = len(prompt)
    noise = KeyedNoise([sampling.seed], [0], [length])
    return Context((prompt,), (length,), (new,), (0,), cache, (sampling,), noise, (length,))


def is_right(text: str, answer: str) -> bool:
    """Whether a text gives this answer: of a number, whether it is the last number of the text; of anything
    else, whether it is the whole text, but for blanks around it."""
    if A_NUMBER.fullmatch(answer.strip()):
        return answer_in(text, A_NUMBER) == answer.strip()
    return text.strip() == answer.strip()
