"""STAND (Song et al. 2025): draw the draft from the target's mean probabilities after the same n-gram.

New here: nothing. Reuses: NGramProbabilityDrafter, rank_template, Rejection, Fixed. Exact at any temperature:
siblings are drawn without replacement from the mean probabilities stored for the last `max_ngram` tokens, or
fewer down to 2, and claim the distribution they were drawn from, at the request's own temperature and
truncation. The paper perturbs log probabilities with precomputed Gumbel noise and keeps the largest, which
gives the same distribution. At temperature 0 the most probable tokens are chosen, without a claim.

The table holds up to 2^18 n-grams of about 220 bytes each, learns from accepted nodes and persists across
requests; when it is full it is cleared. The draft tree has a fixed shape of 80 nodes, weighted towards the
most probable tokens. The paper's has the 80 nodes accepted most often in a wide tree on other problems:
`outpace.drafters.lookup.rank_template.fitted(accepted_ranks(steps), 80).parents`, from the steps of such a
run. The preset `cpu` has 24 nodes, for hardware on which a forward over many tokens costs more than one over
few.

Use it where a problem is answered many times, as in majority voting among samples: the first answer gains
little, later ones more and more.
"""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.core.tree import Shape
from outpace.drafters.lookup.ngram_probabilities import NGramProbabilityDrafter
from outpace.drafters.lookup.rank_template import rank_template
from outpace.verifiers.rejection import Rejection


@recipe(
    paper="arXiv:2506.04708",
    family="training-free",
    proven_with={"nodes": 24},
    presets={"cpu": {"nodes": 24}},
)
def stand(
    target: Target,
    *,
    nodes: int = 80,
    nodes_per_depth: tuple[int, ...] = (),
    parents: tuple[int, ...] | None = None,
    max_ngram: int = 4,
    top_k: int = 10,
    learn_from_prompts: bool = False,
) -> Parts:
    """A tree of fixed shape, drawn from a table of next-token probabilities after n-grams.

    Args:
        nodes: draft tokens per step
        nodes_per_depth: draft tokens at each depth, in place of `nodes`
        parents: parent of each draft node, 0 is the root; a tree of any shape in place of `nodes`
        max_ngram: tokens of the longest n-gram in the table
        top_k: most probable next tokens stored for an n-gram
        learn_from_prompts: also learn from prompts, which needs the logits of every prompt token
    """
    shape = rank_template(nodes, nodes_per_depth, width=top_k) if parents is None else Shape(parents)
    if target.chains_only and shape.parents != tuple(range(len(shape.parents))):
        raise ValueError(
            "this target reads drafts that are chains, and stand draws a tree: give nodes_per_depth=1,1,1,1"
        )
    drafter = NGramProbabilityDrafter(
        target.vocab, max_ngram=max_ngram, top_k=top_k, learn_from_prompts=learn_from_prompts
    )
    return Parts(target, drafter, Rejection(), Fixed(shape))
