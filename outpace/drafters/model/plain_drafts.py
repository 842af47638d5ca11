"""Drafts of most probable tokens computed the plain way: one text at a time, from models that have read
nothing before. LOSSY methods state their output with these, so that proofs compare two computations.

Letters: D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.context import longest_draft
from outpace.core.contracts import NOTHING, Prompt, ReferenceRequest, Scores, Target, Want
from outpace.core.tree import Shape, TokenTree
from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.heads.position_model import PositionModel
from outpace.sampling.topk import top

Path = tuple[int, ...]
HIDDEN = Want(hidden=frozenset({-1}))


class PlainChains:
    """The most probable tokens of a draft model, one after the other."""

    def __init__(self, model: Target, depth: int) -> None:
        self._model, self._depth = model, depth

    def __call__(self, text: Path, limit: int, request: ReferenceRequest) -> list[Path]:
        """The paths of the draft after a text, of at most `limit` tokens, each after the one it continues."""
        paths: list[Path] = [()]
        for _ in range(min(self._depth, limit, longest_draft(self._model.max_length, len(text)))):
            before = (*text, *paths[-1])
            token = int(request.adjusted(before, logits_after(self._model, before)).argmax())
            paths.append((*paths[-1], token))
        return paths[1:]


class PlainRanks:
    """The tree of a head without a KV cache: below a node as many of the most probable tokens as its place in
    a shape has children."""

    def __init__(self, target: Target, opened: PositionModel, shape: Shape) -> None:
        self._target, self._head, self._shape = target, opened.head, shape

    def __call__(self, text: Path, limit: int, request: ReferenceRequest) -> list[Path]:
        """As in `PlainChains`; nothing after the prompt, before whose last token no hidden state is known."""
        if len(text) == request.prompt_length:
            return []
        head, limit = self._head, min(limit, self._head.max_depth or limit)
        hidden = hidden_before(self._target, text)[None].to(next(head.parameters()))
        # node of the shape -> its path, and the head's state before its last token (the root's at first)
        found: dict[int, tuple[Path, Tensor]] = {0: ((), head.begin(hidden))}
        for node, below in enumerate(self._shape.children):
            if node not in found or not below or len(found[node][0]) >= limit:
                continue
            path, states = found[node]
            read = torch.tensor([(*text, *path)[-1]])
            logits, states = head(len(path), states, read.to(states.device))
            logits = over_vocabulary(logits, head.draft_ids, head.vocab)[0]
            adjusted = request.adjusted((*text, *path), logits)[None]
            # ranked as in a draft, also where logits are equal
            _, ranked = top(adjusted, min(len(below), adjusted.shape[-1]))
            if self._target.chains_only:  # the loop keeps the first child of every node
                below = below[:1]
            for child, token in zip(below, ranked[0].tolist(), strict=False):
                found[child] = ((*path, token), states)
        return [path for path, _ in found.values() if path]


def scores_after(model: Target, text: Path, want: Want = NOTHING) -> Scores:
    """A model's outputs at the last token of a text that it reads whole."""
    cache = model.open(1, len(text) + 1)
    if len(text) > 1:
        model.prefill([Prompt(torch.tensor(text))], (0,), cache, NOTHING)
    return model.score(TokenTree.roots(torch.tensor(text[-1:])), (0,), cache, want)


def logits_after(model: Target, text: Path) -> Tensor:  # (V,)
    """A model's logits after a text that it reads whole."""
    logits = scores_after(model, text).logits
    assert logits is not None
    return logits[0]


def hidden_after(model: Target, text: Path) -> Tensor:  # (D,)
    """The input of a model's LM head at the last token of a text."""
    return scores_after(model, text, HIDDEN).hidden[-1][0]


def hidden_before(model: Target, text: Sequence[int]) -> Tensor:  # (D,)
    """The input of a model's LM head at the token before the last of a text."""
    cache = model.open(1, len(text))
    _, scores = model.prefill([Prompt(torch.tensor(text))], (0,), cache, HIDDEN)
    return scores.hidden[-1][-1]
