"""Checks of what the parts of a method return, for mistakes that would otherwise end in an error elsewhere or
in a wrong text.

They look at structure and at a few numbers per node, which takes microseconds. Whether a claim is true is
shown by the distribution tests alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outpace.core.claim import Claim, Drawn, DrawnBeside

if TYPE_CHECKING:
    from outpace.core.contracts import Draft, Plan, Verdict
    from outpace.core.tree import Forest, TokenTree

# attributes of the parts, as core.contracts names them
DRAFTER = ("want", "claims", "learns_across_rows", "drafts_across_rows", "propose", "observe", "release")
VERIFIER = ("want", "accepts", "guarantee", "verify")
CONTROLLER = ("want", "plans_across_rows", "plan", "observe", "release")


class ContractError(TypeError):
    """A part of a method breaks a contract of core.contracts; the message says which, and how it is kept."""


def check_part(part: object, role: str, names: Sequence[str]) -> None:
    """Raise ContractError if a drafter, verifier or controller is a class in place of an instance, or lacks
    one of the attributes `names`. `role`: which of the three it is."""
    if isinstance(part, type):
        raise ContractError(
            f"the {role} is the class {part.__name__}: give Parts an instance, {part.__name__}()"
        )
    if missing := [name for name in names if not hasattr(part, name)]:
        raise ContractError(
            f"{type(part).__name__} is no {role}, as it has no {' and no '.join(missing)}: "
            f"a {role} has {', '.join(names)}"
        )


def check_plan(plan: Plan, rows: int) -> Plan:
    """The plan of a controller for `rows` rows; ContractError if it has another form."""
    depths = getattr(plan, "depth", None)
    if not isinstance(depths, tuple | list):
        raise ContractError(
            f"`plan` of the controller returned {_described(plan)}: return Plan(depth), "
            "with a tuple of one depth per row"
        )
    if len(depths) != rows:
        raise ContractError(
            f"the controller planned {len(depths)} depths for a batch of {rows} rows: plan one per row of "
            "ctx.slots"
        )
    try:
        least = min(map(index, depths), default=0)
    except TypeError:
        raise ContractError(
            f"the controller planned the depths {depths}: a depth is a whole number"
        ) from None
    if least < 0:
        raise ContractError(f"the controller planned the depth {least}: 0 stands for no draft")
    return plan


def check_draft(draft: Draft, roots: Tensor, vocab: int, claims: Sequence[type[Claim]]) -> Draft:
    """The draft of a drafter with these `claims` for rows with these roots (B,); ContractError if it has
    another form. Token ids on an accelerator are not looked at, as that would wait for it."""
    tree: TokenTree | None = getattr(draft, "tree", None)
    if tree is None:
        raise ContractError(
            f"`propose` of the drafter returned {_described(draft)}: return Draft(tree), "
            "with TokenTree.roots(ctx.roots) where nothing is drafted"
        )
    forest, rows = tree.forest, len(roots)
    tokens: Any = tree.tokens
    if not isinstance(tokens, Tensor) or tokens.dim() != 1 or tokens.dtype != torch.int64:
        raise ContractError(
            f"the tokens of the draft are {_described(tokens)}: a draft has a tensor (N,) of int64"
        )
    if forest.num_rows != rows:
        raise ContractError(
            f"the draft has {forest.num_rows} roots for a batch of {rows} rows: a row without a draft has "
            "its root alone"
        )
    try:
        row_of = forest.rows  # computed once per forest, and needed by every target
    except ValueError as error:
        raise ContractError(f"the draft is no tree, as {error}") from error
    if len(tokens) != len(forest):
        raise ContractError(
            f"the draft has {len(tokens)} tokens for the {len(forest)} nodes of its forest: each node has "
            "one, and the roots stand first"
        )
    if tokens.device.type == "cpu":
        _check_tokens(tree.token_list(), row_of, roots, vocab)
    if tree.claim is not None:
        _check_claim(tree.claim, len(forest), vocab, claims)
    return draft


def check_sums(tree: TokenTree) -> None:
    """ContractError if a row of the claim's q has negative numbers or another sum than 1. Proofs ask this:
    over a large vocabulary it takes too long for every step."""
    if isinstance(tree.claim, Drawn):
        for number, q in enumerate(tree.claim.q):
            total, least = float(q.sum()), float(q.min())
            if not (abs(total - 1) < 1e-3 and least >= 0):
                raise ContractError(
                    f"row {number} of q in the claim sums to {total:.4g} and its least number is "
                    f"{least:.4g}: q is the distribution that tokens were drawn from, with a sum of 1"
                )


def check_verdict(verdict: Verdict, forest: Forest, vocab: int) -> Verdict:
    """The verdict of a verifier on these trees; ContractError if it has another form."""
    leaf, bonus = getattr(verdict, "leaf", None), getattr(verdict, "bonus", None)
    if leaf is None or bonus is None:
        raise ContractError(
            f"`verify` of the verifier returned {_described(verdict)}: return Verdict(leaf, bonus)"
        )
    rows = forest.num_rows
    if len(leaf) != rows or len(bonus) != rows:
        raise ContractError(
            f"the verdict has {len(leaf)} leaves and {len(bonus)} bonus tokens for {rows} rows: give one "
            "each per row"
        )
    for row in range(rows):
        if not 0 <= leaf[row] < len(forest) or forest.rows[leaf[row]] != row:
            raise ContractError(
                f"the verdict names node {int(leaf[row])} as the leaf of row {row}, whose tree has the nodes "
                f"{', '.join(map(str, forest.nodes[row]))}: a row in which nothing is accepted names its "
                f"root, {row}"
            )
        if not 0 <= bonus[row] < vocab:
            raise ContractError(
                f"the bonus token of row {row} is {int(bonus[row])}, which is outside of the target's "
                f"vocabulary, 0 to {vocab - 1}"
            )
    return verdict


def _check_tokens(tokens: list[int], row_of: Sequence[int], roots: Tensor, vocab: int) -> None:
    if not 0 <= min(tokens) <= max(tokens) < vocab:
        node = next(node for node, token in enumerate(tokens) if not 0 <= token < vocab)
        raise ContractError(
            f"the draft of row {row_of[node]} has the token {tokens[node]}, which is outside of the "
            f"target's vocabulary, 0 to {vocab - 1}"
        )
    rows, first = len(roots), roots.tolist()
    if tokens[:rows] != first:
        row = next(row for row in range(rows) if tokens[row] != first[row])
        raise ContractError(
            f"the draft of row {row} has the root {tokens[row]}, and the last committed token is "
            f"{first[row]}: the first tokens of a draft are ctx.roots, which are not to be changed"
        )


def _check_claim(claim: Claim, nodes: int, vocab: int, claims: Sequence[type[Claim]]) -> None:
    if not isinstance(claim, tuple(claims)):
        name = type(claim).__name__
        raise ContractError(
            f"the draft has a claim, {name}, which the drafter does not announce: set claims = ({name},), so "
            "that Parts can ask whether the verifier accepts it"
        )
    if not isinstance(claim, Drawn):
        return
    if len(claim.row) != nodes:
        raise ContractError(
            f"the claim has `row` for {len(claim.row)} nodes of a draft with {nodes}: -1 stands for roots "
            "and for nodes that were not drawn"
        )
    if claim.q.dim() != 2 or len(claim.q) != len(claim.replace) or max(claim.row) >= len(claim.q):
        raise ContractError(
            f"the claim has q of the shape {tuple(claim.q.shape)}, {len(claim.replace)} items of `replace` "
            f"and nodes drawn from row {max(claim.row)}: q is (M, K), `replace` has M "
            "items, and rows count from 0"
        )
    if claim.ids is None and claim.q.shape[1] != vocab:
        raise ContractError(
            f"the claim has q over {claim.q.shape[1]} tokens, and the target's vocabulary has {vocab}: "
            "give `ids` if q covers a part of it"
        )
    if isinstance(claim, DrawnBeside) and not claim.after.shape == claim.logits.shape == (nodes, vocab):
        raise ContractError(
            f"the claim has `after` of the shape {tuple(claim.after.shape)} and `logits` of "
            f"{tuple(claim.logits.shape)}: both have a row for each of {nodes} nodes and {vocab} columns"
        )


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return "None" if value is None else f"a {type(value).__name__}"
