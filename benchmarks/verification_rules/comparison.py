"""Comparison of verification rules: expected acceptance of each on the same draft trees, with upper bounds.

The target decodes by itself; at some positions a tree is drafted, with p and q known at every node. For this
tree the expected number of accepted tokens under each rule is computed exactly, over the rule's random
choices. Only rules on the same trees are comparable, so results are grouped by the way of drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from benchmarks.verification_rules.expected_kept import (
    ExpectedAcceptance,
    expected_acceptance,
    expected_acceptance_of_matching,
)
from benchmarks.verification_rules.orderings import margins
from benchmarks.verification_rules.tree_bounds import LengthBounds, length_bounds
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

# one-row tree -> expected acceptance
AcceptanceOfTree = Callable[[TokenTree, TargetProbs, Scores], ExpectedAcceptance]

DISTINCT, INDEPENDENT, GREEDY_LAST = "without replacement", "with replacement", "greedy-last"
DRAFTING: dict[str, AddChildren] = {
    DISTINCT: without_replacement,
    INDEPENDENT: with_replacement,
    GREEDY_LAST: greedy_last,
}


@dataclass(frozen=True)
class Rule:
    """An exact verification rule in the comparison."""

    name: str
    acceptance: AcceptanceOfTree
    drafting: tuple[str, ...] = tuple(DRAFTING)  # keys of `DRAFTING` for which it is exact
    chains_only: bool = False
    whole_paths: bool = False  # it accepts paths as a whole and may exceed `LengthBounds.node_by_node`


def enumerated(verifier: Verifier) -> AcceptanceOfTree:
    """The expected acceptance under this verifier as a function of a tree, by enumeration of its choices."""
    return lambda tree, distribution, scores: expected_acceptance(verifier, tree, distribution, scores)


RULES = (
    Rule("rejection", enumerated(Rejection())),
    Rule("block", enumerated(Block()), chains_only=True, whole_paths=True),
    Rule("traversal", enumerated(Traversal()), whole_paths=True),
    Rule("k-sequential", enumerated(KSequential()), (INDEPENDENT,)),
    Rule("match", lambda tree, distribution, scores: expected_acceptance_of_matching(tree, distribution)),
)


def suited(rules: Sequence[Rule], drafting: str, widths: Sequence[int]) -> list[Rule]:
    """The rules that are exact for trees drafted this way with `widths[d]` children per node at depth d."""
    chain = max(widths) == 1
    return [rule for rule in rules if drafting in rule.drafting and (chain or not rule.chains_only)]


@dataclass(frozen=True)
class Recorded:
    """Results of the trees drafted at one position of one generated text."""

    prompt: int  # index of the prompt
    position: int  # number of tokens generated before the trees were drafted
    # way of drafting -> name of the rule -> expected acceptance
    kept: dict[str, dict[str, ExpectedAcceptance]]
    bounds: dict[str, LengthBounds]  # way of drafting -> upper bounds of the acceptance length
    # inequality (`rule_orderings.margins`) -> left side minus right side at the root
    margins: dict[str, float]


@dataclass
class Recorder:
    """Plain decoding with the target that drafts trees at every `stride`-th token, records each rule's
    expected acceptance of them in `found`, and discards them."""

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
        self,
        target: Target,
        prompts: Sequence[Tensor],
        sampling: Sequence[SamplingParams],
        num_positions: int,
    ) -> None:
        """Record at `num_positions` positions, an equal share per prompt. Where texts end early, prompts are
        decoded again with other seeds."""
        share, turn = -(-num_positions // len(prompts)), 0
        while len(self.found) < num_positions:
            self._prompt = turn % len(prompts)
            row_params = sampling[self._prompt]
            self._last = min(num_positions, len(self.found) + share)
            params = SamplingParams(
                temperature=row_params.temperature,
                top_k=row_params.top_k,
                top_p=row_params.top_p,
                max_tokens=self.tokens(share),
                stop=row_params.stop,
                seed=row_params.seed + 1009 * turn,
            )
            parts = Parts(target, NoDraft(), Match(), Fixed(0))
            for _ in Session(parts, [prompts[self._prompt]], [params], LazyTargetProbs).steps(self.record):
                pass
            turn += 1

    def tokens(self, trees: int) -> int:
        """Number of tokens to generate for `trees` recorded positions, with capacity for each draft."""
        return (trees - 1) * self.stride + len(self.widths) + 1

    def record(self, session: Session) -> Iterator[Step]:
        """Decoding loop for `Session.steps`: plain decoding that records at every `stride`-th token."""
        while step := session.prefill():  # trees are scored at the first token, without the prompt
            yield step
        written = 0
        while session.rows and len(self.found) < self._last:
            ctx = session.context()
            if written % self.stride == 0 and ctx.max_draft_depth[0] >= len(self.widths):
                self._record(session, ctx, written)
            tree = TokenTree.roots(ctx.roots)
            scores = session.parts.target.score(tree, ctx.slots, session.cache)
            verdict = Verdict([0], session.target_probs(scores, tree, ctx).choose([0], ctx.noise))
            written += 1
            yield session.commit(ctx, Draft(tree), scores, verdict)

    def _record(self, session: Session, ctx: Context, written: int) -> None:
        kept: dict[str, dict[str, ExpectedAcceptance]] = {}
        bounds: dict[str, LengthBounds] = {}
        proven: dict[str, float] = {}
        for name, drafter in self._drafters.items():
            tree = drafter.propose(ctx, Plan((len(self.widths),), self._shape)).tree
            scores = session.parts.target.score(tree, ctx.slots, session.cache)
            target_probs = session.target_probs(scores, tree, ctx)
            # every node will be needed: apply the sampling parameters to all at once
            target_probs.probs(None)
            rules = suited(self.rules, name, self.widths)
            kept[name] = {rule.name: rule.acceptance(tree, target_probs, scores) for rule in rules}
            bounds[name] = length_bounds(tree, target_probs)
            if name == INDEPENDENT and isinstance(tree.claim, Drawn):
                first = tree.claim.row[tree.forest.children[0][0]]
                proven = margins(target_probs.probs([0])[0], tree.claim.q[first], self.widths[0])
            session.cache.commit(tree, [-1], ctx.slots)
        self.found.append(Recorded(self._prompt, written, kept, bounds, proven))
        self.after()
