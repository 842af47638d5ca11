"""The interfaces of target, KV cache, drafter, controller and verifier, and the records they exchange.

Letters: B rows of the batch, N nodes of all trees, V vocabulary size, K columns of q, M rows of q, D hidden
size, T tokens. p is always a distribution of the target, q one of a drafter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from outpace.core.claim import Claim
from outpace.core.clock import Seconds
from outpace.core.context import Context
from outpace.core.contract_checks import (
    CONTROLLER,
    DRAFTER,
    VERIFIER,
    ContractError,
    check_draft,
    check_part,
    check_plan,
    check_verdict,
)
from outpace.core.noise import Key, Noise
from outpace.core.recipe import Guarantee, Recipe, recipe
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, Shape, TokenTree

__all__ = [
    "NOTHING",
    "Cache",
    "Carry",
    "Choose",
    "Context",
    "Controller",
    "Draft",
    "Drafter",
    "DraftsAhead",
    "Ends",
    "Forest",
    "Frontier",
    "Guarantee",
    "Key",
    "KnowsPrompts",
    "MakeTargetProbs",
    "TargetProbs",
    "TargetWithLayers",
    "Noise",
    "Parts",
    "PathScores",
    "Plan",
    "PrefixCache",
    "Prompt",
    "ReadsChains",
    "ReadsTargetCache",
    "Recipe",
    "Reference",
    "SamplingParams",
    "Scores",
    "Shape",
    "Step",
    "Stop",
    "Target",
    "TokenTree",
    "Verdict",
    "Verifier",
    "Want",
    "check_token_ids",
    "recipe",
    "ReferenceRequest",
    "StatedProbs",
    "StepReference",
]


@dataclass(frozen=True, slots=True)
class Want:
    """Outputs of the target that a part needs besides logits; a session requests the union over its parts."""

    hidden: frozenset[int] = frozenset()  # layers whose outputs are needed; -1: the input of the LM head
    attention: frozenset[int] = frozenset()  # layers whose attention weights are needed; slow, not fused
    prompt_logits: bool = False  # logits at the prompt's tokens too; off, since (T, V) is large
    # whether `hidden` and `attention` are needed at prompt tokens too: prompts then have forwards of their
    # own, and no text reuses KV entries of the prefix cache
    at_prompt: bool = True

    @property
    def outputs_at_prompt(self) -> bool:
        """Whether outputs at the tokens of prompts are needed, not only at draft trees."""
        return self.prompt_logits or self.at_prompt and bool(self.hidden or self.attention)

    def __or__(self, other: Want) -> Want:
        both = (self, other)
        with_outputs = [want for want in both if want.hidden or want.attention]
        return Want(
            self.hidden | other.hidden,
            self.attention | other.attention,
            self.prompt_logits or other.prompt_logits,
            any(want.at_prompt for want in with_outputs or both),
        )


NOTHING = Want()


@dataclass(frozen=True, eq=False, slots=True)
class Prompt:
    """The prompt of one request."""

    tokens: Tensor  # (T,) int64 on the host, T >= 1


@dataclass(frozen=True, eq=False, slots=True)
class Scores:
    """The target's outputs at the nodes of one forward: a whole tree, or the nodes added since the last."""

    first: int  # index of the first node with outputs: row i of these tensors is node first + i
    logits: Tensor | None  # (N - first, V), before sampling parameters; None in prefill without prompt_logits
    hidden: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])  # layer -> (N - first, D)
    # layer -> for each node its attention weights (heads, tokens it attends to)
    attention: Mapping[int, list[Tensor]] = field(default_factory=dict[int, "list[Tensor]"])
    computed: int | None = None  # tokens of the forward, padding included; None: it had no padding


# (n,) float64 array of numpy: the logarithms of the draft probabilities of n paths of a row
PathScores = Any


class TreeSize(Protocol):
    """Decides while a tree of chosen tokens is drafted how large it gets, from the scores of each row's
    paths. `levels` is the number of levels drafted so far."""

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> Sequence[int]:
        """How many of the most probable paths of `newest` the next level extends, by row; 0 in all rows: no
        next level. `candidates`: paths that may stay in the tree; `newest`: paths to nodes of the last level
        that can be extended; both most probable first."""
        ...

    def keep(self, candidates: Sequence[PathScores], levels: int) -> Sequence[int]:
        """How many of the most probable paths of each row stay in the tree."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Frontier:
    """F leaves of a draft in progress, which get children unless the draft ends there."""

    rows: Sequence[int]  # (F,) row of each leaf
    paths: Sequence[Sequence[float]]  # (F,) conditional draft probabilities of the tokens on each path
    # (F, K) the draft model's logits, before sampling parameters, at the parent of each leaf, from which the
    # leaf's token was drawn or chosen; column k is token k. None: the drafter has none
    logits: Tensor | None = None
    hidden: Tensor | None = None  # (F, D) the draft model's states after each leaf, with `Plan.stop_reads`
    # (F,) probability that the tokens of the path and the one drafted next are all accepted, as the draft
    # model itself predicts it; None: it does not
    survival: Sequence[float] | None = None

    def only(self, leaves: Sequence[int], rows: Sequence[int]) -> Frontier:  # (M,), (M,)
        """These leaves only, in `rows` of another batch."""
        at = list(leaves)
        return Frontier(
            rows,
            [self.paths[leaf] for leaf in at],
            None if self.logits is None else self.logits[at],
            None if self.hidden is None else self.hidden[at],
            None if self.survival is None else [self.survival[leaf] for leaf in at],
        )


Stop = Callable[[Frontier], list[bool]]  # for each leaf whether it gets no children


# a continuation of a row's text: length of the longest suffix that occurred before (0: none), and the
# tokens that followed it there
Found = tuple[int, Sequence[int]]
LookUp = Callable[[], Sequence[Found]]  # searches all rows; -> one continuation per row


@dataclass(frozen=True, slots=True)
class Plan:
    """How deep to draft in each row, and in which tree shape."""

    depth: tuple[int, ...]  # (B,) maximum length of a draft path; 0: no speculation in this row
    shape: Shape | None = None  # shape of every row's draft tree; None: a chain
    # early stopping, called before each level but the first with the leaves that would get children; a leaf
    # with True gets none. Tokens that were drawn already stay in the tree
    stop: Stop | None = None
    # call `stop` after the draft model has read the leaves, so that their hidden states are known; a draft
    # that it ends has then cost one more forward
    stop_reads: bool = False
    size: TreeSize | None = None  # for trees of the most probable paths; None: the method's own size
    # For methods that draft either from text found by an n-gram lookup or from a draft model. Called by the
    # drafter with the maximum draft length of each row and a function that does the lookup. Returns for each
    # row (number of tokens to take from the found text, number of tokens to draft with the model), one of
    # them 0. It may return without calling the lookup function, which costs time
    choice: Callable[[Sequence[int], LookUp], Sequence[tuple[int, int]]] | None = None
    # (B,) for methods with several drafters: the index of the one that drafts each row; None: there is one
    drafter: tuple[int, ...] | None = None
    # tokens with which the drafts begin, a tree with the rows' roots: the drafter adds `depth` levels below
    # each leaf of it, in place of below the roots. A drafter that does not know this field drafts below the
    # roots, which changes no distribution. None: there are no such tokens
    stem: TokenTree | None = None

    def within(self, max_depth: Sequence[int]) -> Plan:  # (B,)
        """The same plan with the depth of each row limited to `max_depth`, its longest useful path."""
        if all(depth <= limit for depth, limit in zip(self.depth, max_depth, strict=True)):
            return self
        return replace(self, depth=tuple(min(pair) for pair in zip(self.depth, max_depth, strict=True)))


@dataclass(frozen=True, eq=False, slots=True)
class Carry:
    """Outputs of the target's first layers, computed by a drafter that consists of these layers, so that the
    target continues from them. The KV entries of these layers are in the target's cache."""

    tree: TokenTree  # of N nodes; unused unless this very tree is scored
    layer: int  # the last of the layers that the drafter computed
    hidden: Tensor  # (N, D) outputs of that layer


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """A drafter's proposal for one step."""

    tree: TokenTree
    forwards: int = 0  # number of draft model forwards
    # time of these forwards, which a device may still be computing; the rest of drafting is overhead
    seconds: Seconds = 0.0
    carry: Carry | None = None  # layer outputs that the target may continue from


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted path and the bonus token of each row, on the host."""

    leaf: Sequence[int]  # (B,) deepest accepted node; the root if no draft token was accepted
    bonus: Sequence[int]  # (B,) bonus token, which follows that node and is the root of the next step


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """The record of one step, for drafters, controllers and statistics.

    A row in chunked prefill generates nothing: the target only reads a part of its text. If a part of the
    method needs the target's outputs at prompt tokens, prompts are read in steps of their own: such a step
    has a chunk of the prompt as its draft, a chain below the chunk's first token, fully accepted, and the
    token after the chunk as its bonus token."""

    ctx: Context  # state before the step
    draft: Draft
    scores: Scores  # the target's outputs, also at rejected nodes
    verdict: Verdict
    kept: tuple[int, ...]  # (B,) last node kept in the KV cache, after the cut at stop tokens and max_tokens
    generated: tuple[list[int], ...]  # (B,) tokens committed by this step, in order; none: it only read
    # seconds by part: draft, score, warp, verify, commit, observe; caller: since the end of the previous step
    seconds: Mapping[str, float]
    finished: tuple[int, ...] = ()  # rows whose requests end with this step

    @staticmethod
    def of_prefill(
        ctx: Context, prompts: Sequence[Prompt], tree: TokenTree, scores: Scores, seconds: Mapping[str, float]
    ) -> Step:
        """The record of a prefill: `tree` and `scores` are the result of `Target.prefill`."""
        leaf = tuple(nodes[-1] for nodes in tree.forest.nodes)
        verdict = Verdict(leaf, [int(prompt.tokens[-1]) for prompt in prompts])
        return Step(ctx, Draft(tree), scores, verdict, leaf, tuple([] for _ in prompts), seconds)


class Cache(Protocol):
    """A target's KV cache, with one slot per sequence."""

    lengths: list[int]  # number of committed tokens in the KV cache, per slot; on the host
    capacity: int  # cache positions per slot, draft nodes included; a text that needs more enlarges it
    device: torch.device  # of the forwards

    @property
    def num_bytes(self) -> int:
        """Memory that the slots hold, in bytes."""
        ...

    def slot_bytes(self, slot: int, tokens: int) -> int:
        """Memory that this slot would hold with at least `tokens` cache positions, in bytes, shared entries
        included; with 0, the memory that it holds now."""
        ...

    def bytes_for(self, tokens: Mapping[int, int]) -> int:
        """Memory that all slots would hold if each slot in `tokens` had at least `tokens[slot]` cache
        positions, in bytes. Entries that slots share count once."""
        ...

    def grow(self, slots: int) -> None:
        """Add empty slots until there are `slots` of them."""
        ...

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        """Keep the KV entries of the path from each root to its leaf (both included) and discard the entries
        of other nodes. Leaf -1 keeps no node of that row, not even the root. `tree` may lack the last nodes
        that were scored: their entries are discarded."""
        ...

    def discard(self) -> None:
        """Discard the entries of the tree scored last, if it is not committed."""
        ...

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Discard the entries of the committed tokens from index `lengths[i]` on, at most the slot's length,
        because other tokens have taken their place. A cache that cannot go back to that index goes back
        further: `lengths` tells how far. ValueError for a view of another cache."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Free these slots by setting their lengths to 0."""
        ...


@runtime_checkable
class PrefixCache(Cache, Protocol):
    """A KV cache that reuses the entries of texts with a common prefix. Entries of texts given to `name` are
    retained after their slots were released, as far as the limit allows."""

    @property
    def retained_bytes(self) -> int:
        """Memory of retained entries that no slot uses, in bytes."""
        ...

    def name(self, slot: int, tokens: Tensor) -> None:  # (T,) int64 on the host
        """Register the tokens of a slot's committed entries, T = `lengths[slot]`, for `restore` to find."""
        ...

    def restore(self, slot: int, tokens: Tensor) -> int:  # (T,) int64 on the host
        """Give an empty slot the entries of the longest cached prefix of `tokens`; returns the prefix's
        length, at most T."""
        ...

    def limit(self, num_bytes: int, *, by: str = "") -> None:
        """Evict retained entries, least recently used first, now and later, so that they and the slots hold
        at most `num_bytes` together. Slots are not limited. A server and a method may each set a limit, under
        names of their own (`by`): the lowest holds."""
        ...


@runtime_checkable
class Target(Protocol):
    """A language model that computes logits at all nodes of token trees."""

    vocab: int  # vocabulary size
    max_length: int | None  # maximum number of tokens of prompt and output together; None: no known limit
    chains_only: bool  # scores no trees: its attention takes no tree mask

    @property
    def sizes(self) -> Sequence[int]:
        """Padded sizes of forwards in tokens, ascending: a forward over n tokens is padded to the smallest
        size of at least n. More tokens than the last size are split into forwards of that size, of which only
        the remainder is padded. Empty: forwards are not padded."""
        ...

    @property
    def chain_sizes(self) -> Sequence[int]:
        """Like `sizes`, for a forward over a single sequence whose draft is a chain, not a tree: a compiled
        target may have graphs of fixed shapes for such forwards only. Equal to `sizes` if it has none."""
        ...

    @property
    def torch_threads(self) -> int | None:
        """Number of torch threads during a session's steps; None: the number is not changed."""
        ...

    @property
    def token_bytes(self) -> int:
        """Memory of the KV entries of one token, in bytes."""
        ...

    @property
    def state_bytes(self) -> int:
        """Memory of one text that does not depend on its length, in bytes: states of recurrent layers."""
        ...

    @property
    def caches(self) -> Sequence[Cache]:
        """The KV caches opened so far that are still in use."""
        ...

    def open(self, slots: int, capacity: int) -> Cache:
        """A new KV cache with `slots` slots of `capacity` cache positions each, draft nodes included."""
        ...

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        """Compute and store the KV entries of all but the last token of each prompt (at least 2 tokens each),
        in chunks, after the tokens that the slots hold. Returns a tree with one chain of these tokens per
        row, rooted at the first token, and the outputs at its nodes."""
        ...

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor]
        | None = None,  # B × (G_b,) committed tokens before each root that are not in the KV cache
        carry: Carry | None = None,  # of the draft; a target that cannot continue from it computes all layers
    ) -> Scores:
        """Run one forward over `gap`, whose KV entries are committed, and over the tree's nodes, whose
        entries are provisional until `Cache.commit`. Each node attends to the committed tokens of its row,
        its ancestors and itself. If the tree extends the one scored last, only the new nodes are computed."""
        ...


@runtime_checkable
class KnowsPrompts(Cache, Protocol):
    """A KV cache that is told where outputs begin, for a target that treats prompt and output differently."""

    def begin(self, slot: int, prompt_length: int) -> None:
        """A request with a prompt of this length joins in this empty slot. Its text may be longer than that,
        if it rejoins."""
        ...


@runtime_checkable
class TargetWithLayers(Target, Protocol):
    """A target whose embedding, LM head and layer outputs are used by draft heads."""

    @property
    def num_layers(self) -> int:
        """Number of layers, whose outputs `Want.hidden` names from 0."""
        ...

    @property
    def embed(self) -> nn.Module:
        """The input embedding: (...) int64 token ids -> (..., D)."""
        ...

    @property
    def head(self) -> nn.Module:
        """The LM head: (..., D) hidden states at its input -> (..., V) logits."""
        ...


@runtime_checkable
class ReadsTargetCache(Target, Protocol):
    """A draft model made of a target's own layers, which reads the target's KV cache. It has no entries of
    its own for committed tokens, so it drafts only in rows whose text the target has read."""

    @property
    def carried_layer(self) -> int | None:
        """The layer from whose outputs at draft nodes the target can continue (see `Carry`); None if it
        cannot."""
        ...

    def view(self, cache: Cache) -> Cache:
        """The target's cache as this model sees it. The view commits and frees nothing: the target overwrites
        the entries of draft nodes when it scores them."""
        ...


Choose = Callable[[Tensor], int]  # (1, K) logits of one node -> the token after it
Ends = Callable[[], bool]  # called after a token was chosen: whether the chain ends with that token


@runtime_checkable
class ReadsChains(Protocol):
    """A draft model that can run the forwards of a whole chain in one call, with only the choice of the next
    token between two forwards."""

    def continue_chain(
        self,
        root: Tensor,  # (1,)
        slot: int,
        cache: Cache,
        depth: int,
        choose: Choose | None,  # chooses the token after each node; None: the most probable one
        *,
        gap: Tensor | None = None,  # (G,) committed tokens before the root that are not in the KV cache
        features: Tensor | None = None,  # (G + 1, F) of a draft head
        ends: Ends | None = None,  # called after each token but the `depth`-th; None: no chain ends early
    ) -> tuple[list[int], Tensor] | None:
        """Run up to `depth` forwards of one token each (the first also over `gap`): over the root, then over
        each chosen token, until the chain `ends`. KV entries and logits equal those of one `Target.score` per
        token with a growing chain. Returns the chosen tokens (D,), of which the last was not read, and the
        logits (D, K) before all sampling parameters; None, and computes nothing, if the model cannot run
        this chain in one call."""
        ...


class TargetProbs(Protocol):
    """The target's distribution p at the nodes of a scored tree, after all sampling parameters; computed on
    demand."""

    def choose(self, nodes: Sequence[int] | None, noise: Noise, use: str = "target") -> list[int]:
        """One token after each node (None: all nodes), sampled from p; the argmax at temperature 0."""
        ...

    def probs(self, nodes: Sequence[int] | None) -> Tensor:  # (M, V) at least float32
        """The distribution p after each node (None: all nodes); rows sum to 1."""
        ...

    seconds: Seconds  # time spent so far on computing p and sampling from it


MakeTargetProbs = Callable[[Scores, TokenTree, Context], TargetProbs]


class Drafter(Protocol):
    """Proposes a tree of draft tokens for every row. A drafter serves one session at a time."""

    want: Want
    claims: tuple[type[Claim], ...]  # classes of the claims of its trees; (): its trees have no claim
    learns_across_rows: (
        bool  # drafts depend on other requests: on their steps, or on their texts after their end
    )
    drafts_across_rows: (
        bool  # drafts of a row use the texts of the other rows being decoded in the same batch
    )

    def propose(self, ctx: Context, plan: Plan) -> Draft: ...

    def observe(self, step: Step) -> None:
        """Learn from a step. A drafter that learns from whole requests learns from `step.finished`."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Forget the state of the requests in these slots, which have finished, were cancelled or preempted.
        The slots may be reused afterwards."""
        ...


@runtime_checkable
class DraftsAhead(Drafter, Protocol):
    """A drafter that can draft after tokens that are only assumed (`Context.certain`). If the next context of
    the slot has others in their place, it forgets what it knows of them."""

    drafts_ahead: bool


class Controller(Protocol):
    """Decides before each step how deep to draft in each row, and in which tree shape."""

    want: Want
    # plans of a row depend on the lengths or the accepted tokens of other rows, or on measured times
    plans_across_rows: bool

    def plan(self, ctx: Context) -> Plan: ...
    def observe(self, step: Step) -> None: ...
    def release(self, slots: Sequence[int]) -> None: ...


class Verifier(Protocol):
    """Decides which path of each draft tree is accepted, and samples the bonus token after it."""

    want: Want
    accepts: tuple[type[Claim], ...]  # claims (recorded q) that it verifies exactly; nodes may have none
    guarantee: Guarantee

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict: ...


@runtime_checkable
class Reference(Protocol):
    """The distribution that the output of a LOSSY method has: that of plain decoding with these logits.

    They are computed another way than by the method, without caches, batches and drafts, so that proofs can
    compare the two."""

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        ...

    def logits(self, texts: Sequence[Sequence[int]], prompt_length: int) -> Tensor:
        """(M, V) logits after each of M texts of equal length, of which the first `prompt_length` tokens are
        the prompt; before sampling parameters."""
        ...


@dataclass(frozen=True)
class ReferenceRequest:
    """What a StatedProbs or StepReference needs of a request: its sampling parameters, and their effect on
    logits after a text (prompt and output)."""

    sampling: SamplingParams
    prompt_length: int
    logits: Callable[[tuple[int, ...]], Tensor]  # text -> (V,) the target's, before sampling parameters
    probs: Callable[[tuple[int, ...]], Tensor]  # text -> (V,) the target's distribution of the next token
    # text, (V,) logits of any model -> (V,) their distribution of the next token with all parameters
    probs_of: Callable[[tuple[int, ...], Tensor], Tensor]
    # text, (V,) logits of any model -> (V,) logits changed by the parameters applied before temperature
    adjusted: Callable[[tuple[int, ...], Tensor], Tensor]


@runtime_checkable
class StatedProbs(Protocol):
    """The distribution of the next token that the output of a LOSSY method has, where it follows from the
    text and the request's sampling parameters, but is not that of any one model's logits with them: a mixture
    of two models' distributions.

    It is computed another way than by the method, without caches, batches and drafts, so that proofs can
    compare the two. A predicted output is refused, as the method needs its own drafter after every token."""

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        ...

    def next_probs(self, text: tuple[int, ...], request: ReferenceRequest) -> Tensor:
        """(V,) the distribution of the token after `text`, prompt included."""
        ...


@runtime_checkable
class StepReference(Protocol):
    """The output distribution of a LOSSY method whose choices depend on its draft, and so on where a step
    begins; stated step by step.

    Drafts and choices are computed another way than by the method, without caches and batches, so that proofs
    can compare the two. It holds for the method's own drafts, not for those of a predicted output."""

    @property
    def description(self) -> str:
        """Completes the sentence "the output is that of ...", for users."""
        ...

    def step(
        self, text: tuple[int, ...], limit: int, request: ReferenceRequest
    ) -> Iterable[tuple[float, tuple[int, ...]]]:
        """(probability, added tokens) of every outcome of a step after `text`, prompt included. The request
        has room for `limit` >= 1 tokens; tokens beyond it, or after a stop token, are ignored."""
        ...


@dataclass(frozen=True)
class Parts:
    """The parts of one method, as a recipe returns them. TypeError if a part lacks an attribute of its
    contract, or if the drafter makes claims of a class that the verifier does not accept."""

    target: Target
    drafter: Drafter
    verifier: Verifier
    controller: Controller
    # the output's distribution, where it is not that of the target given to the recipe: `target` is then an
    # approximation of that model, or the verifier accepts more than an exact one
    reference: Reference | StatedProbs | StepReference | None = None
    prompt_part: int = sys.maxsize  # most prompt tokens that one step reads; a session may read fewer
    # decodes a `decode.Session` step by step, until it has no rows; None: decode.speculative_steps does
    schedule: Callable[[Any], Iterator[Step]] | None = None

    def __post_init__(self) -> None:
        check_part(self.drafter, "drafter", DRAFTER)
        check_part(self.verifier, "verifier", VERIFIER)
        check_part(self.controller, "controller", CONTROLLER)
        for claim in self.drafter.claims:
            if not any(issubclass(claim, accepted) for accepted in self.verifier.accepts):
                drafter, verifier = type(self.drafter).__name__, type(self.verifier).__name__
                known = " or ".join(kind.__name__ for kind in self.verifier.accepts) or "no claims"
                raise TypeError(
                    f"{drafter} claims {claim.__name__}, but {verifier} accepts {known}: "
                    "let the drafter choose without a claim or use a verifier that accepts it"
                )

    @property
    def guarantee(self) -> Guarantee:
        """What is promised about the output: LOSSY with a reference, else what the verifier promises."""
        return self.verifier.guarantee if self.reference is None else Guarantee.LOSSY

    @property
    def want(self) -> Want:
        """Outputs of the target that the drafter, the verifier or the controller needs."""
        return self.drafter.want | self.verifier.want | self.controller.want

    def plan(self, ctx: Context) -> Plan:
        """The controller's plan, within the tokens left to generate; ContractError if it is faulty."""
        return check_plan(self.controller.plan(ctx), len(ctx.slots)).within(ctx.max_draft_depth)

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        """The drafter's draft, without nodes after stop tokens; ContractError if it is faulty."""
        draft = self.drafter.propose(ctx, plan)
        draft = check_draft(draft, ctx.roots, self.target.vocab, self.drafter.claims)
        stops, tree = ctx.stops, draft.tree
        if stops is None or len(tree) == len(stops) or tree.tokens.device.type != "cpu":
            return draft
        within = tree.within(stops)
        return draft if within is tree else replace(draft, tree=within)

    def steps(self, session: Any, usual: Callable[[Any], Iterator[Step]]) -> Iterator[Step]:
        """The steps of a session by the method's schedule, or by `usual` if it has none. ContractError for a
        schedule that leaves requests unfinished."""
        yield from (self.schedule or usual)(session)
        if session.rows:
            name = getattr(self.schedule, "__name__", self.schedule)
            raise ContractError(
                f"the schedule {name} ended before its requests: it yields steps until session.rows is empty"
            )

    def verify(self, tree: TokenTree, target_probs: TargetProbs, scores: Scores, noise: Noise) -> Verdict:
        """The verifier's verdict; ContractError if it is faulty."""
        verdict = self.verifier.verify(tree, target_probs, scores, noise)
        return check_verdict(verdict, tree.forest, self.target.vocab)


def check_token_ids(prompt: Tensor, vocab: int) -> None:
    """Raise ValueError if the prompt has a token id outside of 0 to `vocab` - 1."""
    if not 0 <= int(prompt.min()) <= int(prompt.max()) < vocab:
        raise ValueError(
            f"the prompt has a token id outside of 0 to {vocab - 1}, the model's vocabulary: "
            "use the tokenizer that belongs to the model"
        )
