"""What the two layouts of DSpark share: the keys of the Markov head and of the confidence head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.dspark.head import DSparkHead
from outpace.models.heads.formats.files import CONFIG, Config, HeadFileError, Tensors

KIND = "vanilla"  # a bias that follows from the token before alone


def maker(config: Config, tensors: Tensors, target: TargetWithLayers) -> Callable[..., DSparkHead]:
    """Makes a head with the Markov head and the confidence head of this configuration. HeadFileError for
    variants of them that outpace does not have."""
    if (kind := config.get("markov_head_type") or KIND) != KIND:
        raise HeadFileError(
            f"its Markov head is of the type {kind}, and outpace has those of the type {KIND}: give a head "
            "with one"
        )
    if not (rank := config.get("markov_rank")):
        raise HeadFileError(
            f"its {CONFIG} has no markov_rank above 0: restore that file, or give a head without a Markov "
            "head to dflash, in its layout"
        )
    return partial(
        DSparkHead,
        vocab=target.vocab,
        rank=rank,
        confidence=bool(config.get("enable_confidence_head")),
        reads_tokens=bool(config.get("confidence_head_with_markov")),
        confidence_bias="confidence_head.proj.bias" in tensors,
    )


def written(head: DSparkHead) -> Config:
    """The keys of a head that heads of DFlash do not have."""
    return {
        "markov_rank": head.markov_head.markov_w1.embedding_dim,
        "markov_head_type": KIND,
        "enable_confidence_head": head.predicts_acceptance,
        "confidence_head_with_markov": head.predicts_acceptance and head.reads_tokens,
    }
