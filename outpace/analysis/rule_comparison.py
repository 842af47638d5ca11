"""Verification rules side by side: what each keeps of the same recorded trees, and what none of them can
exceed.

A tree is drafted at a context of a text that the target writes by itself, with p and q known at every node.
The number of tokens expected to be kept is then computed, not sampled: over the rule's own random choices,
with the drafted tokens given. Rules are comparable where the trees are, so each way of drafting is a group of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from outpace.analysis.expected_kept import Kept, kept_by, kept_by_matching
from outpace.analysis.rule_orderings import margins
from outpace.analysis.tree_bounds import LengthBounds, length_bounds
from outpace.controllers.fixed import Fixed
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Plan, Scores, Step, Target, TargetProbs, Verdict, Verifier
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Shape, TokenTree
from outpace.decode import Session
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.greedy_last import greedy_last
from outpace.drafters.model.grow import AddChildren, grow, with_replacement, without_replacement
from outpace.drafters.no_draft import NoDraft
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.verifiers.block import Block
from outpace.verifiers.kseq import KSequential
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection
from outpace.verifiers.traversal import Traversal

Keeps = Callable[[TokenTree, TargetProbs, Scores], Kept]  # of a tree of one row

DISTINCT, INDEPENDENT, GREEDY_LAST = "without replacement", "with replacement", "greedy-last"
DRAFTING: dict[str, AddChildren] = {
    DISTINCT: without_replacement,
    INDEPENDENT: with_replacement,
    GREEDY_LAST: greedy_last,
}


@dataclass(frozen=True)
class Rule:
    """One exact rule."""

    name: str
    keeps: Keeps
    drafting: tuple[str, ...] = tuple(DRAFTING)  # the ways of drafting for which it is exact
    chains_only: bool = False
    whole_paths: bool = False  # it weighs a path as a whole, and may exceed what settling node by node allows


def enumerated(verifier: Verifier) -> Keeps:
    """What this verifier keeps, over all its choices."""
    return lambda tree, distribution, scores: kept_by(verifier, tree, distribution, scores)


RULES = (
    Rule("rejection", enumerated(Rejection())),
    Rule("block", enumerated(Block()), chains_only=True, whole_paths=True),
    Rule("traversal", enumerated(Traversal()), whole_paths=True),
    Rule("k-sequential", enumerated(KSequential()), (INDEPENDENT,)),
    Rule("match", lambda tree, distribution, scores: kept_by_matching(tree, distribution)),
)


def suited(rules: Sequence[Rule], drafting: str, widths: Sequence[int]) -> list[Rule]:
    """Those that are exact for such trees."""
    chain = max(widths) == 1
    return [rule for rule in rules if drafting in rule.drafting and (chain or not rule.chains_only)]


@dataclass(frozen=True)
class Recorded:
    """What was computed from the trees drafted at one context."""

    prompt: int
    position: int  # tokens written before it
    kept: dict[str, dict[str, Kept]]  # way of drafting -> rule -> what it keeps
    bounds: dict[str, LengthBounds]
    margins: dict[str, float]  # what is proven at one node -> by how much it holds at the root


@dataclass
class Recorder:
    """Decodes with the target alone, and at every `stride`-th token drafts trees that are compared and
    discarded."""

    draft: Target
    widths: tuple[int, ...]
    rules: Sequence[Rule] = RULES
    drafting: Sequence[str] = tuple(DRAFTING)
    stride: int = 4
    after: Callable[[], None] = lambda: None
    found: list[Recorded] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._shape = Shape.branching(self.widths)
        self._drafters = {
            name: DraftModel(self.draft, growth=partial(grow, children=DRAFTING[name]))
            for name in self.drafting
        }

    def write(
        self, target: Target, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams], most: int
    ) -> None:
        """Record `most` contexts, an equal share a prompt, and prompts again where their texts end early."""
        share, turn = -(-most // len(prompts)), 0
        while len(self.found) < most:
            self._prompt = turn % len(prompts)
            row_params = sampling[self._prompt]
            self._last = min(most, len(self.found) + share)
            room = SamplingParams(
                temperature=row_params.temperature,
                top_k=row_params.top_k,
                top_p=row_params.top_p,
                max_tokens=self.tokens(share),
                stop=row_params.stop,
                seed=row_params.seed + 1009 * turn,
            )
            parts = Parts(target, NoDraft(), Match(), Fixed(0))
            for _ in Session(parts, [prompts[self._prompt]], [room], LazyTargetProbs).steps(self.record):
                pass
            turn += 1

    def tokens(self, trees: int) -> int:
        """Tokens of a text in which so many contexts can be recorded, with room for every draft."""
        return (trees - 1) * self.stride + len(self.widths) + 1

    def record(self, session: Session) -> Iterator[Step]:
        """A decoding loop: plain decoding that records a context at every `stride`-th token."""
        written = 0
        while session.rows and len(self.found) < self._last:
            ctx = session.context()
            if written % self.stride == 0 and ctx.room[0] >= len(self.widths):
                self._record(session, ctx, written)
            tree = TokenTree.roots(ctx.roots)
            scores = session.parts.target.score(tree, ctx.slots, session.cache)
            verdict = Verdict([0], session.target_probs(scores, tree, ctx).choose([0], ctx.noise))
            written += 1
            yield session.commit(ctx, Draft(tree), scores, verdict)

    def _record(self, session: Session, ctx: Context, written: int) -> None:
        kept: dict[str, dict[str, Kept]] = {}
        bounds: dict[str, LengthBounds] = {}
        proven: dict[str, float] = {}
        for name, drafter in self._drafters.items():
            tree = drafter.propose(ctx, Plan((len(self.widths),), self._shape)).tree
            scores = session.parts.target.score(tree, ctx.slots, session.cache)
            target_probs = session.target_probs(scores, tree, ctx)
            target_probs.probs(None)  # every node is looked at: warp them together
            rules = suited(self.rules, name, self.widths)
            kept[name] = {rule.name: rule.keeps(tree, target_probs, scores) for rule in rules}
            bounds[name] = length_bounds(tree, target_probs)
            if name == INDEPENDENT and isinstance(tree.claim, Drawn):
                first = tree.claim.row[tree.forest.children[0][0]]
                proven = margins(target_probs.probs([0])[0], tree.claim.q[first], self.widths[0])
            session.cache.commit(tree, [-1], ctx.slots)
        self.found.append(Recorded(self._prompt, written, kept, bounds, proven))
        self.after()
