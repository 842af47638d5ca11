"""STAND (Song et al. 2025): draw the draft from what the target thought, on average, after the same few tokens.

New here: nothing. Reuses: LogitNGram, rank templates, Rejection, Fixed. Exact at any temperature: siblings are drawn
without replacement from the mean probabilities known after the last `longest` tokens, or fewer down to 2, and claimed
with the distribution they were drawn from, at the request's own temperature and truncation. The paper perturbs log probabilities
with Gumbel noise made beforehand and keeps the largest, which gives draws of the same distribution. At temperature 0 the
likeliest are chosen, without a claim.

A table of up to 2^18 n-grams, about 220 bytes each, with the `width` likeliest tokens after it, learns from accepted
nodes, with `prompt` also from prompts, and stays from request to request; when it is full it starts anew. The draft
fills a fixed tree: `nodes` nodes that lean to low ranks, so many at each depth as `levels` says, or the tree that
`parents` names, the parent of each node, 0 being the root. The paper's has 80 nodes, those accepted most often in a
wide tree on other problems: `outpace.drafters.lookup.rank_template.fitted(accepted_ranks(steps), 80).parents` from the steps of
such a run.

Use it where a problem is answered many times, as for a vote among samples: the first answer gains little, later ones
more and more.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.lookup.ngram_probabilities import NGramProbabilityDrafter
from outpace.drafters.lookup.rank_template import rank_template
from outpace.verifiers.rejection import Rejection


@recipe(paper="arXiv:2506.04708", family="training-free")
def stand(
    target: Target,
    *,
    nodes: int = 24,
    levels: tuple[int, ...] = (),
    parents: tuple[int, ...] | None = None,
    max_ngram: int = 4,
    width: int = 10,
    prompt: bool = False,
) -> Parts:
    shape = rank_template(nodes, levels, width=width) if parents is None else Shape(parents)
    drafter = NGramProbabilityDrafter(target.vocab, max_ngram=max_ngram, width=width, prompt=prompt)
    return Parts(target, drafter, Rejection(), Fixed(shape))
