"""ADED (Liu et al. 2025): draft the paths that a tree search visits most often in an adaptive trigram table.

New here: Trigrams, with its table and search. Reuses: Match, Fixed. Exact at any temperature: the drafted
tokens carry no claim, the search is seeded by the length of the text, and the target draws one token at each
node. Code that draws one token per path and keeps the longest match is not exact.

The table holds a weight for each trigram: its conditional frequency in the index, if there is one, plus
`weight_step` for each time it was among the last 16 tokens of a text at the start of a draft, at most 3. A
Monte Carlo tree search walks from the last two tokens; the most visited paths, each extended by its most
probable next token, form the draft tree. A request keeps its own additions, at most 4096 token pairs. When it
ends they are added to the shared table, which holds the newest 65536 pairs besides the index. As in the
authors' code, the last 16 tokens count again at every step.

Use it where a text repeats its own phrases. The table grows with the number of distinct token pairs in a
corpus, not with its length. Without numba (extra `retrieval`) a search takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from outpace.controllers.fixed import Fixed
from outpace.core.claim import Claim
from outpace.core.contracts import Context, Draft, Parts, Plan, Step, Target, Want, recipe
from outpace.indexes import store
from outpace.indexes.candidates import NO_CANDIDATES, CandidateTree, candidate_tree
from outpace.indexes.store import TrigramFile
from outpace.recipes.training_free.aded.trigram_search import search
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.verifiers.match import Match

OWN, SHARED = 1 << 12, 1 << 16  # maximum number of token pairs added by a request; by all requests
LAST = 16  # number of last tokens whose trigrams gain weight before each draft
CAP = 3.0  # largest weight of a trigram


@recipe(paper="arXiv:2407.12021", family="training-free")
def aded(
    target: Target,
    *,
    index: TrigramFile | None = None,
    iterations: int = 150,
    max_paths: int = 24,
    nodes: int = 64,
    depth: int = 4,
    exploration: float = 32.0,
    weight_step: float = 0.04,
) -> Parts:
    """A tree found by Monte Carlo tree search in a trigram table, verified by matching.

    Args:
        index: file of `outpace index build --kind trigrams`; without one the table starts empty
        iterations: tree search iterations per draft
        max_paths: number of paths, those visited most often, that form the draft tree
        nodes: maximum number of draft tokens per step
        depth: levels of the tree search; paths are extended by one more token
        exploration: weight of unvisited tokens in the search; larger values give wider trees
        weight_step: weight added at every step to the trigrams of the last 16 tokens; 0 learns nothing
    """
    drafter = Trigrams(
        table(index, target.vocab),
        iterations=iterations,
        max_paths=max_paths,
        nodes=nodes,
        depth=depth,
        exploration=exploration,
        weight_step=weight_step,
    )
    return Parts(target, drafter, Match(), Fixed(depth + 1))


def table(path: str | None, vocab: int) -> TrigramTable:
    """The trigram table in this file, or an empty one without a path; ValueError if it contains token ids
    beyond the model's vocabulary."""
    return store.open_index(TrigramTable, path, vocab, mapped=False) or TrigramTable(capacity=SHARED)


class Trigrams:
    """Implementation of core.contracts.Drafter: the paths that a Monte Carlo tree search in the trigram table
    visits most often.

    The weights that a request adds are its own while it runs and are added to the shared table when it ends.
    The seed of the search is the length of the text.
    """

    want = Want()
    claims: tuple[type[Claim], ...] = ()
    learns_across_rows = True
    drafts_across_rows = False

    def __init__(
        self,
        table: TrigramTable,
        *,
        iterations: int = 150,
        max_paths: int = 24,
        nodes: int = 64,
        depth: int = 4,
        exploration: float = 32.0,
        weight_step: float = 0.04,
    ) -> None:
        if min(iterations, max_paths, nodes, depth) < 1:
            raise ValueError("a search has at least one iteration, path, node and level")
        if not 0 <= exploration < float("inf") or not 0 <= weight_step <= CAP:
            raise ValueError(
                f"exploration is {exploration} and weight_step {weight_step}; use 0 or more, at most {CAP} "
                "for the step"
            )
        self._table, self._iterations, self._max_paths, self._nodes = table, iterations, max_paths, nodes
        self._depth, self._exploration, self._weight_step = depth, exploration, weight_step
        self._own: dict[int, TrigramTable] = {}
        self._empty = self._new()

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        return Draft(
            candidate_tree(ctx.roots, [self._found(ctx, row, depth) for row, depth in enumerate(plan.depth)])
        )

    def _found(self, ctx: Context, row: int, depth: int) -> CandidateTree:
        if depth == 0:
            return NO_CANDIDATES
        own, tokens = self._empty, ctx.tokens[row]
        context = tokens[-LAST:].tolist()
        if self._weight_step:
            own = self._own.get(ctx.slots[row])
            if own is None:
                own = self._own[ctx.slots[row]] = self._new()
            own.adapt(context, LAST, self._weight_step, CAP)
        return search(
            self._table,
            own,
            context,
            iterations=self._iterations,
            num_paths=self._max_paths,
            num_nodes=self._nodes,
            depth=min(self._depth, depth),
            max_depth=depth,
            explore=self._exploration,
            cap=CAP,
            seed=len(tokens),
        )

    def observe(self, step: Step) -> None:
        """Does nothing: `propose` reads the committed tokens from its context."""

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self._own:
                self._table.add(self._own.pop(slot), CAP)

    def _new(self) -> TrigramTable:
        return TrigramTable(self._table.tokens.shape[1], OWN)
