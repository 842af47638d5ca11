"""Mutants of sampling parameters: penalties and constraints computed from wrong preceding tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from outpace.controllers.fixed import Fixed
from outpace.core.context import Context
from outpace.core.contracts import Parts, Scores
from outpace.core.tree import Shape, TokenTree
from outpace.drafters.no_draft import NoDraft
from outpace.models.table import TableTarget
from outpace.proof.mutants.drafters import CorrectDrafter
from outpace.proof.sampling_cases import options
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection

KINDS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "bad_words", "min_tokens", "grammar")


class RootsHistory(LazyTargetProbs):
    """Mutant: the draft path of a node is ignored: its sampling parameters are applied as at the root."""

    def _path(self, node: int) -> list[int]:
        return []


class SiblingsHistory(LazyTargetProbs):
    """Mutant: the path of a node at depth d is taken to be the row's first d draft tokens, as in a chain."""

    def _path(self, node: int) -> list[int]:
        path = super()._path(node)
        nodes = self._tree.forest.nodes[self._tree.forest.rows[node]]
        tokens = self._tree.tokens.tolist()
        return [tokens[index] for index in nodes[1 : len(path) + 1]]


class PromptCounted(LazyTargetProbs):
    """Mutant: prompt tokens count as generated tokens."""

    def __init__(self, scores: Scores, tree: TokenTree, ctx: Context) -> None:
        super().__init__(scores, tree, replace(ctx, prompt_lengths=(0,) * len(ctx.tokens)))


class StepCounted(LazyTargetProbs):
    """Mutant: only the draft tokens of the current step count as generated tokens."""

    def __init__(self, scores: Scores, tree: TokenTree, ctx: Context) -> None:
        super().__init__(scores, tree, replace(ctx, prompt_lengths=tuple(map(len, ctx.tokens))))


def histories(
    target: TableTarget, draft: TableTarget
) -> Iterator[tuple[str, Callable[[], Parts], type[LazyTargetProbs], dict[str, Any]]]:
    """(name, function that returns the parts, TargetProbs class, sampling parameters) of each mutant."""
    chain, twice = Fixed(2), Fixed(Shape.branching((2,)))
    params = {name: {"stop": (1,)} | options(target.vocab)[name] for name in KINDS}
    for name in KINDS:
        yield (
            f"{name} of the root",
            partial(Parts, target, CorrectDrafter(draft), Rejection(), chain),
            RootsHistory,
            params[name],
        )
        if name != "min_tokens":  # depends on the length of a path only, which is the same for siblings
            siblings = CorrectDrafter(draft, width=2)
            yield (
                f"{name} of a sibling",
                partial(Parts, target, siblings, Match(), twice),
                SiblingsHistory,
                params[name],
            )
    for start, distribution in (("prompt", PromptCounted), ("step", StepCounted)):
        name = f"presence_penalty counted from the {start}"
        yield (
            name,
            partial(Parts, target, NoDraft(), Match(), chain),
            distribution,
            params["presence_penalty"],
        )
