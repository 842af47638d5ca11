"""The contracts between parts: what a target, a drafter, a verifier and a controller promise one another.

Letters: B rows, N nodes of all trees, V vocabulary, K columns of q, M rows of q, D hidden size, T tokens.
p is the target's distribution, q a drafter's, always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.noise import Key, Noise
from outpace.core.recipe import Guarantee, Recipe, recipe
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, Shape, TokenTree

if TYPE_CHECKING:
    from outpace.decode import Session

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
    "Schedule",
    "Scores",
    "Shape",
    "Step",
    "Target",
    "TokenTree",
    "Verdict",
    "Verifier",
    "Want",
    "recipe",
]


@dataclass(frozen=True, slots=True)
class Want:
    """What a part needs from the target; the session asks for the union."""

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
    """What a row starts from."""

    tokens: Tensor  # (T,) int64 on the host, at least one


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """What a target says of the nodes it has just read: all of a tree, or those a cache had not read yet."""

    first: int  # node of row 0 of these tensors
    logits: Tensor | None  # (N - first, V) unwarped; None while a prompt is read
    hidden: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])  # layer -> (N - first, D)
    attention: Mapping[int, list[Tensor]] = field(
        default_factory=dict[int, "list[Tensor]"]
    )  # layer -> per node (heads, seen)


@dataclass(frozen=True, slots=True)
class Plan:
    """How far to draft in each row."""

    depth: tuple[int, ...]  # (B,) longest path; 0: do not speculate in this row
    shape: Shape | None = None  # None: a chain
    # the drafter's belief in each of the F nodes it is about to extend -> True: do not. Nothing drawn is dropped
    stop: Callable[[Sequence[float]], list[bool]] | None = None

    def within(self, room: Sequence[int]) -> Plan:  # (B,)
        """The same plan, no deeper than the room left in each row."""
        if all(depth <= most for depth, most in zip(self.depth, room, strict=True)):
            return self
        return replace(self, depth=tuple(min(pair) for pair in zip(self.depth, room, strict=True)))


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """What a drafter proposes."""

    tree: TokenTree
    forwards: int = 0  # model forwards it took, so that cost can be told apart from overhead
    seconds: float = 0.0  # spent in those forwards


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decides, on the host."""

    leaf: Sequence[int]  # (B,) deepest accepted node; the root if nothing was
    bonus: Sequence[int]  # (B,) the token after it: the next root


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The one record everybody learns from: drafters, controllers, metrics. Reading a prompt is a step too: a chain
    below its first token, fully accepted, whose bonus is its last token."""

    ctx: Context  # as it was before the step
    draft: Draft
    scores: Scores  # rejected nodes included
    verdict: Verdict
    kept: tuple[int, ...]  # leaf really kept per row, after stop tokens and limits
    generated: tuple[list[int], ...]
    seconds: Mapping[str, float]  # draft, score, distribution, verify, commit, observe


class Cache(Protocol):
    """What a target has read of each sequence."""

    lengths: list[int]  # per slot, on the host: tokens read and kept
    capacity: int  # tokens for which a slot has room, provisional nodes included; a larger draft makes more

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        """Keep the path from each root to its leaf, forget the other nodes. A leaf of -1 keeps nothing of that row."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Forget these sequences: their lengths become 0."""
        ...


@runtime_checkable
class Target(Protocol):
    """A language model that scores trees."""

    vocab: int
    chains_only: bool  # it cannot tell siblings apart (biases that follow the slot instead of the position)

    def open(self, slots: int, capacity: int) -> Cache:
        """A cache for this many sequences of `capacity` tokens each, provisional nodes included."""
        ...

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        """Read and keep all but the last token of each prompt (each at least 2 tokens), in chunks, as
        `Forest.chain`s rooted at the first tokens."""
        ...

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,  # B × (G_b,) committed tokens the cache lacks before the root
    ) -> Scores:
        """One forward: read and keep `gap`, then read the tree's unread nodes, provisionally. Each node sees the
        committed tokens of its row and its ancestors. A tree that extends the one read last costs its new nodes."""
        ...


class TargetProbs(Protocol):
    """The target's distribution at the nodes of a scored tree, after temperature and truncation; computed only where asked."""

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = "target") -> list[int]:
        """One token after each node (None: after all), drawn from p; greedy rows cost an argmax."""
        ...

    def probs(self, nodes: Sequence[int] | None) -> Tensor:  # (M, V) at least float32
        """p after each node (None: after all); rows sum to 1."""
        ...

    seconds: float  # spent on warping so far


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
        """The requests in these slots have ended, finished or interrupted: forget their state. A drafter that learns
        from whole requests learns from them here. The slots may hold new requests afterwards."""
        ...


class Controller(Protocol):
    """Decides how far to draft."""

    want: Want

    def plan(self, ctx: Context) -> Plan: ...
    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


class Verifier(Protocol):
    """Decides which path of the draft to keep, and the token after it."""

    want: Want
    accepts: tuple[type[Claim], ...]  # claims it is exact for; nodes without a claim are always allowed
    guarantee: Guarantee

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict: ...


Schedule = Callable[["Session"], Iterator[Step]]


@dataclass(frozen=True)
class Parts:
    """What a recipe returns."""

    target: Target
    drafter: Drafter
    verifier: Verifier
    controller: Controller
    schedule: Schedule | None = None  # None: decode.sequential

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
        """What the session asks the target for."""
        return self.drafter.want | self.verifier.want | self.controller.want
