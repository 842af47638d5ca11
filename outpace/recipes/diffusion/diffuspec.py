"""DiffuSpec (Li et al. 2025): the best path through a diffusion model's window, by the model and by n-grams.

New here: lattice_path, AdaptiveLength. Reuses: DraftModel, WindowReader, Levels, NGramScores, Match. Exact at
any temperature: the path is chosen, so it carries no claim.

The model fills a window of masks in one forward, whose distributions do not know one another's tokens. At
each place its most probable tokens are tried until their probabilities sum to `mass`, at most `width` of
them, and the tokens with which the text ends. A beam search chooses among the paths by the sum of
(1 - w) log p + w log p_ngram over their tokens, with w the `ngram_weight` and n-grams of an `index`: at most
`max_ngram` tokens, from the text into the path, fewer where a token never followed these. Where the end of
the text is among the probable tokens, no path goes on. Without an index the n-grams do not count.

Drafts are as long as the last ones were up to the text's end, and `growth` tokens longer where all of them
were accepted, both in moving averages of a request: `shortest` tokens at least, and `growth` more at most.

Our reading: paths of different lengths are compared by their mean per token, as by sums a text that ends at
once would be best; "all accepted" means all but half a token; the first draft has the shortest length. Train
the draft model with as many masks: `outpace train specdiff --set distillation.num_masks=30`. The preset `cpu`
has shorter drafts, for texts of about a hundred tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from math import floor

import numpy

from outpace.core.context import Context
from outpace.core.contracts import Parts, Plan, Step, Target, Want, recipe
from outpace.core.grower import Grower
from outpace.core.tree import TokenTree
from outpace.drafters.model.best_first import Levels, LogProbs, Scored, Tokens, last
from outpace.drafters.model.draft_model import DraftModel
from outpace.drafters.model.grow import Read, chosen_chains
from outpace.drafters.model.ngram_scores import NGramScores
from outpace.drafters.model.windows import Window, WindowReader, reading_windows
from outpace.indexes import store
from outpace.indexes.automata.static import StaticAutomaton
from outpace.indexes.store import SuffixAutomatonFile
from outpace.models.mask_token import WINDOW_MASK, token_of
from outpace.verifiers.match import Match

SLACK = 0.5  # tokens that may be rejected, in the mean, where drafts grow


@recipe(
    paper="arXiv:2510.02358",
    family="diffusion drafters",
    proven_with={"mask": 0},
    presets={"cpu": {"shortest": 6}},
)
def diffuspec(
    target: Target,
    *,
    draft: Target,
    index: SuffixAutomatonFile | None = None,
    shortest: int = 20,
    growth: int = 10,
    mass: float = 0.8,
    width: int = 15,
    beam: int = 3,
    max_ngram: int = 3,
    ngram_weight: float = 0.5,
    mask: int | None = None,
) -> Parts:
    """The best path through a window of masks, by a diffusion model and n-grams, of adaptive length.

    Args:
        draft: model that was trained to fill windows of masks; it has the same vocabulary as the target
        index: file of `outpace index build --kind suffix-automaton`, in which n-grams are counted
        shortest: tokens drafted per step at least
        growth: tokens by which drafts get longer where all are accepted, and may be longer at most
        mass: probability of the tokens that are tried at each place together
        width: most tokens that are tried at each place
        beam: paths that are extended at each place
        max_ngram: tokens of the longest n-gram that is counted
        ngram_weight: share of the n-grams in the score of a path; 0: they do not count
        mask: token that stands for a token to draft; None: that of the draft model's configuration
    """
    if shortest < 1 or growth < 0:
        raise ValueError(
            f"drafts of at least {shortest} tokens, growing by {growth}: give 1 token or more, and a growth "
            "that is not negative"
        )
    if min(width, beam, max_ngram) < 1 or not (0 < mass <= 1 and 0 <= ngram_weight <= 1):
        raise ValueError(
            f"width is {width}, beam {beam}, max_ngram {max_ngram}, mass {mass} and ngram_weight "
            f"{ngram_weight}: give 1 or more of the first three, a mass above 0 up to 1 and a weight of 0 "
            "to 1"
        )
    counts = store.open_index(StaticAutomaton, index, target.vocab)
    weight = 0.0 if counts is None else ngram_weight
    window = Window(shortest + growth, token_of(draft, mask, "mask", WINDOW_MASK, "specdiff"))
    search = partial(
        lattice_path,
        window=window,
        mass=mass,
        width=width,
        beam=beam,
        context=max_ngram - 1,
        scored=NGramScores(counts, weight, model_weight=1 - weight),
    )
    drafter = DraftModel(reading_windows(draft, window), sampled=False, growth=search, rereads=True)
    return Parts(target, drafter, Match(), AdaptiveLength(shortest, growth))


def lattice_path(
    ctx: Context,
    plan: Plan,
    read: Read,
    *,
    window: Window,
    mass: float,
    width: int,
    beam: int,
    context: int,
    scored: Scored,
) -> TokenTree:
    """A chain for each row, no longer than the plan's depth: the best path through its window. `scored` is
    given the last `context` tokens of text and path."""
    if not max(plan.depth):
        return TokenTree.roots(ctx.roots)
    levels = Levels(ctx, WindowReader(plan, read, window, (window.size,)), width)
    chains = list[list[int]]()
    for row, depth in enumerate(plan.depth):
        ends = () if ctx.stops is None else ctx.stops[row]
        text = last(ctx.tokens[row], context).tolist()
        tried = partial(_tried, levels, row, mass, ends)
        chains.append(_best_path(partial(_scores, tried, scored, text, context), depth, beam, ends))
    grower = Grower(ctx.roots)
    chosen_chains(grower, chains)
    return grower.tree()


def _tried(
    levels: Levels, row: int, mass: float, ends: Sequence[int], path: Sequence[int]
) -> tuple[Tokens, LogProbs, bool]:  # (W,) each
    """The tokens that are tried after a path, the logs of their draft probabilities, and whether the text may
    well end with one of them. It is also tried where it ends, however unlikely that is."""
    tokens, log_probs = levels.after(row, path)
    count = 1 + int((numpy.exp(log_probs).cumsum() < mass).sum())
    tokens, log_probs = tokens[:count], log_probs[:count]
    natural = set(tokens.tolist())
    if unlikely := [token for token in ends if token not in natural]:
        added = levels.log_probs(row, path, unlikely)
        tokens = numpy.append(tokens, numpy.array(unlikely, numpy.int32))
        log_probs = numpy.append(log_probs, added)
    return tokens, log_probs, not natural.isdisjoint(ends)


def _scores(
    tried: Callable[[Sequence[int]], tuple[Tokens, LogProbs, bool]],
    scored: Scored,
    text: Sequence[int],
    context: int,
    path: Sequence[int],
) -> tuple[list[int], list[float], bool]:
    tokens, log_probs, may_end = tried(path)
    scores = scored(last([*text, *path], context), len(path), tokens, log_probs)
    return tokens.tolist(), scores.tolist(), may_end


def _best_path(
    after: Callable[[Sequence[int]], tuple[list[int], list[float], bool]],
    depth: int,
    beam: int,
    ends: Container[int],
) -> list[int]:
    """The path of the largest mean score per token, of those that a beam search finds. `after`: a path -> the
    tokens that are tried after it, their scores, and whether no path goes on behind this place."""
    going, finished = [(0.0, list[int]())], list[tuple[float, list[int]]]()
    for _ in range(depth):
        found, is_last = list[tuple[float, list[int]]](), False
        for score, path in going:
            tokens, scores, may_end = after(path)
            found += [(score + each, [*path, token]) for token, each in zip(tokens, scores, strict=True)]
            is_last |= may_end
        found.sort(key=lambda each: -each[0])
        finished += [each for each in found if each[1][-1] in ends]
        going = [each for each in found if each[1][-1] not in ends][:beam]
        if is_last or not going:
            break
    # of equally good paths the longest
    return max([*going, *finished], key=lambda each: (each[0] / max(1, len(each[1])), len(each[1])))[1]


class AdaptiveLength:
    """Implementation of core.contracts.Controller: drafts as long as a request's last ones were, and longer
    where all of their tokens were accepted (the paper's ADL)."""

    want = Want()
    plans_across_rows = False

    def __init__(self, shortest: int, growth: int) -> None:
        self._shortest, self._growth = shortest, growth
        self._means: dict[int, tuple[float, float]] = {}  # slot -> means of tokens drafted and accepted

    def plan(self, ctx: Context) -> Plan:
        return Plan(tuple(self._length(slot) for slot in ctx.slots))

    def _length(self, slot: int) -> int:
        drafted, accepted = self._means.get(slot, (0.0, -SLACK - 1))
        grown = self._growth if accepted >= drafted - SLACK else 0
        return min(max(floor(drafted) + grown, self._shortest), self._shortest + self._growth)

    def observe(self, step: Step) -> None:
        forest = step.draft.tree.forest
        for row, slot in enumerate(step.ctx.slots):
            drafted, accepted = len(forest.nodes[row]) - 1, forest.depths[step.verdict.leaf[row]]
            if step.generated[row] and drafted:
                before = self._means.get(slot, (drafted, accepted))
                self._means[slot] = (before[0] + drafted) / 2, (before[1] + accepted) / 2

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._means.pop(slot, None)
