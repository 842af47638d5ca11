"""SuffixDecoding (Oliaro et al. 2025): draft the most frequent continuation of the matches in suffix trees.

New here: nothing. Reuses: SuffixTreeLookup, LookupDrafter, DraftModel, Match or Rejection, Fixed. Exact at
any temperature: retrieved tokens carry no claim, and a fallback model's draws claim the distribution they
were drawn from.

Two suffix trees with counts are searched: one of the request's prompt and text, one of the tokens that
earlier requests generated. For every number p of last tokens that occurred before, a draft follows the most
frequent tokens, at most `depth` and `max_spec_factor` * p + `max_spec_offset` of them, while the product of
count(child) / count(parent) is at least `min_token_prob`. The draft with the largest sum of such products,
its expected number of accepted tokens, is verified. With a `fallback` model set `min_score` near the mean
number of its tokens that are accepted.

Use it where text recurs: agents, code that is edited, SQL, many samples of one task. It needs no draft model,
and gains more the more alike the requests are. A tree takes about 160 bytes per token. Without numba (extra
`retrieval`) the trees are slow.

By default a draft is a tree with as many nodes as tokens matched; with `--no-tree` it is a chain, as in the
authors' code. Such drafts are short at first where answers are short. The preset `cpu` drafts up to 15 nodes,
12 of them after a single matched token: on edits, greedy, it gave 1.08 times the tokens per second of
`prompt-lookup` on this project's test models (the zoo), and chains as long as the match 0.78 times. Counts
are divided by the parent's, as in the authors' code, not by the sum over the siblings. The end of the text
itself, which has no continuation yet, counts as one more occurrence in both trees.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.lookup.suffix_trees import SuffixTreeLookup
from outpace.drafters.lookup.text_lookup import LookupDrafter
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.match import Match
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2411.04975",
    family="training-free",
    presets={"cpu": {"depth": 15, "max_spec_factor": 4.0, "max_spec_offset": 8.0}},
)
def suffix_decoding(
    target: Target,
    *,
    depth: int = 64,
    max_spec_factor: float = 1.0,
    max_spec_offset: float = 0.0,
    min_token_prob: float = 0.1,
    tree: bool = True,
    max_tree_depth: int = 64,
    max_cached_tokens: int = 1 << 22,
    fallback: Target | None = None,
    fallback_depth: int = 5,
    min_score: float = 2.0,
) -> Parts:
    """The most frequent continuations, from suffix trees with counts.

    Args:
        depth: maximum number of draft tokens per step
        max_spec_factor: maximum number of draft tokens per matched token
        max_spec_offset: added to that number of draft tokens
        min_token_prob: minimum estimated probability that a draft token is reached
        tree: draft a tree of the most probable nodes in place of a chain
        max_tree_depth: depth of the suffix trees: matched and drafted tokens together
        max_cached_tokens: newest tokens of earlier requests kept; the oldest are dropped first
        fallback: draft model for rows whose expected number of accepted tokens is too low
        fallback_depth: tokens that the fallback model drafts
        min_score: expected accepted tokens at or below which the fallback model drafts instead
    """
    lookup = SuffixTreeLookup(
        max_tree_depth,
        max_spec_factor=max_spec_factor,
        max_spec_offset=max_spec_offset,
        min_token_prob=min_token_prob,
        tree=tree,
        min_score=min_score if fallback else 0.0,
        max_cached_tokens=max_cached_tokens,
    )
    if fallback is None:
        return Parts(target, LookupDrafter(lookup), Match(), Fixed(depth))
    drafter = LookupDrafter(lookup, DraftModel(fallback), fallback_depth)
    return Parts(target, drafter, Rejection(), Fixed(depth))
