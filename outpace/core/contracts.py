"""The interfaces of the parts: target, KV cache, drafter, controller, verifier, and the records they
exchange.

Letters: B rows, N nodes of all trees, V vocabulary, K columns of q, M rows of q, D hidden size, T tokens.
p is the target's distribution, q a drafter's, always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.noise import Key, Noise
from outpace.core.recipe import Guarantee, Recipe, recipe
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, Shape, TokenTree

__all__ = [
    "NOTHING",
    "Cache",
    "Context",
    "Controller",
    "Draft",
    "Drafter",
    "Forest",
    "Guarantee",
    "Key",
    "TargetProbs",
    "Noise",
    "Parts",
    "Plan",
    "Prompt",
    "Recipe",
    "SamplingParams",
    "Scores",
    "Shape",
    "Step",
    "Target",
    "TokenTree",
    "Verdict",
    "Verifier",
    "Want",
    "check_token_ids",
    "recipe",
]


@dataclass(frozen=True, slots=True)
class Want:
    """What a part needs from the target besides logits; the session requests the union of its parts'."""

    hidden: frozenset[int] = frozenset()  # layer outputs; -1 is the input of the LM head
    attention: frozenset[int] = frozenset()  # disables fused attention kernels: slow
    prompt_logits: bool = False  # logits of prompt nodes too; (T, V) is large, so off

    def __or__(self, other: Want) -> Want:
        return Want(
            self.hidden | other.hidden,
            self.attention | other.attention,
            self.prompt_logits or other.prompt_logits,
        )


NOTHING = Want()


@dataclass(frozen=True, eq=False, slots=True)
class Prompt:
    """The input of one request."""

    tokens: Tensor  # (T,) int64 on the host, at least one


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """The target's outputs at the nodes of its last forward: a whole tree, or the nodes added to it since."""

    first: int  # index of the node that row 0 of these tensors belongs to
    logits: Tensor | None  # (N - first, V), before sampling parameters; None in prefill
    hidden: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])  # layer -> (N - first, D)
    attention: Mapping[int, list[Tensor]] = field(
        default_factory=dict[int, "list[Tensor]"]
    )  # layer -> per node (heads, seen)


@dataclass(frozen=True, slots=True)
class Plan:
    """How far to draft in each row."""

    depth: tuple[int, ...]  # (B,) longest path; 0: do not speculate in this row
    shape: Shape | None = None  # None: a chain
    # (F,) draft probabilities of the nodes about to be extended -> True: do not extend. Nothing drawn is
    # dropped
    stop: Callable[[Sequence[float]], list[bool]] | None = None

    def within(self, room: Sequence[int]) -> Plan:  # (B,)
        """The same plan, no deeper than each row's room."""
        if all(depth <= most for depth, most in zip(self.depth, room, strict=True)):
            return self
        return replace(self, depth=tuple(min(pair) for pair in zip(self.depth, room, strict=True)))


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """A drafter's proposal for one step."""

    tree: TokenTree
    forwards: int = 0  # draft model forwards it took
    seconds: float = 0.0  # spent in those forwards: the rest of drafting is overhead


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's decision, on the host."""

    leaf: Sequence[int]  # (B,) deepest accepted node; the root if none was accepted
    bonus: Sequence[int]  # (B,) bonus token, sampled after it: the next root


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The record of one step, for drafters, controllers and statistics. Prefill is a step too: the prompt is
    a chain below its first token, fully accepted, and its last token is the bonus token."""

    ctx: Context  # as it was before the step
    draft: Draft
    scores: Scores  # rejected nodes included
    verdict: Verdict
    kept: tuple[int, ...]  # per row the last node kept in the cache, after stop tokens and limits
    generated: tuple[list[int], ...]  # per row the tokens committed
    seconds: Mapping[str, float]  # draft, score, warp, verify, commit, observe


class Cache(Protocol):
    """A target's KV cache, with one slot a sequence."""

    lengths: list[int]  # per slot, on the host: committed tokens in the cache
    capacity: int  # tokens for which a slot has room, draft nodes included; a larger draft enlarges it

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        """Keep the entries of the path from each root to its leaf and drop the other nodes. -1 keeps no node
        of that row."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Empty these slots: their lengths become 0."""
        ...


@runtime_checkable
class Target(Protocol):
    """A language model that scores trees."""

    vocab: int
    max_length: int | None  # tokens of prompt and answer together; None: no limit known
    chains_only: bool  # its attention cannot tell siblings apart (biases by cache slot instead of position)

    @property
    def torch_threads(self) -> int | None:
        """Torch threads while a session makes a step; None: leave their number as it is."""
        ...

    def open(self, slots: int, capacity: int) -> Cache:
        """A KV cache for this many sequences of `capacity` tokens each, draft nodes included."""
        ...

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        """Compute and keep the cache entries of all but the last token of each prompt (at least 2 tokens
        each), in chunks. The tree returned has one chain a row, rooted at the first token."""
        ...

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor]
        | None = None,  # B × (G_b,) committed tokens before the root that the cache lacks
    ) -> Scores:
        """One forward over `gap`, whose cache entries are kept, and over the tree's nodes, whose entries are
        provisional until `Cache.commit`. Each node attends to the committed tokens of its row, its ancestors
        and itself. For a tree that extends the one scored last, only the new nodes are computed."""
        ...


class TargetProbs(Protocol):
    """The target's distribution at the nodes of a scored tree, after all sampling parameters; computed on
    demand."""

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = "target") -> list[int]:
        """One token after each node (None: all nodes), sampled from p; an argmax for greedy rows."""
        ...

    def probs(self, nodes: Sequence[int] | None) -> Tensor:  # (M, V) at least float32
        """p after each node (None: all nodes); rows sum to 1."""
        ...

    seconds: float  # spent on sampling parameters so far


class Drafter(Protocol):
    """Proposes a tree of draft tokens for every row. It serves one session at a time."""

    want: Want
    claims: tuple[type[Claim], ...]  # kinds its trees may carry; () means it never claims
    learns_across_rows: (
        bool  # a row's draft depends on other requests: on their steps, or their texts once ended
    )
    drafts_across_rows: (
        bool  # a row's draft comes from the texts of other rows that are being decoded with it
    )

    def propose(self, ctx: Context, plan: Plan) -> Draft: ...
    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None:
        """The requests in these slots have ended, finished or interrupted: forget their state. A drafter that
        learns from whole requests learns from them here. The slots may hold new requests afterwards."""
        ...


class Controller(Protocol):
    """Decides how deep to draft, and in which shape."""

    want: Want

    def plan(self, ctx: Context) -> Plan: ...
    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


class Verifier(Protocol):
    """Decides which path of the draft to keep, and the token after it."""

    want: Want
    accepts: tuple[type[Claim], ...]  # claims for which it is exact; nodes without a claim are always allowed
    guarantee: Guarantee

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict: ...


@dataclass(frozen=True)
class Parts:
    """What a recipe returns: the parts of one method."""

    target: Target
    drafter: Drafter
    verifier: Verifier
    controller: Controller

    def __post_init__(self) -> None:
        for claim in self.drafter.claims:
            if not any(issubclass(claim, accepted) for accepted in self.verifier.accepts):
                drafter, verifier = type(self.drafter).__name__, type(self.verifier).__name__
                known = " or ".join(kind.__name__ for kind in self.verifier.accepts) or "no claims"
                raise TypeError(
                    f"{drafter} claims {claim.__name__}, but {verifier} accepts {known}: "
                    "let the drafter choose without a claim or use a verifier that accepts it"
                )

    @property
    def want(self) -> Want:
        """What the session requests from the target."""
        return self.drafter.want | self.verifier.want | self.controller.want


def check_token_ids(prompts: Sequence[Tensor], vocab: int) -> None:
    """Raise ValueError for a prompt with a token id that the model does not have."""
    for row, prompt in enumerate(prompts):
        if not 0 <= int(prompt.min()) <= int(prompt.max()) < vocab:
            raise ValueError(
                f"prompt {row} has a token id outside of 0 to {vocab - 1}, the model's vocabulary: "
                "use the tokenizer that belongs to the model"
            )
