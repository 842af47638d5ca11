"""A draft head whose weights are the mean of the weights of several heads for one target."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from outpace.core.contracts import Target
from outpace.models.heads.compressed import weights_of_head
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget

# cached, as compiling takes seconds: first head -> pairs of (other heads, mean of all)
_AVERAGES: WeakKeyDictionary[HeadModel, list[tuple[tuple[HeadModel, ...], HeadModel]]] = WeakKeyDictionary()


def averaged(heads: Sequence[HeadModel], target: Target) -> HeadModel:
    """The mean of these heads, compiled if the first is, without compressed matrices of its own. ValueError
    if the weights of the heads have different shapes."""
    first, others = heads[0], tuple(heads[1:])
    if not others:
        return first
    made = _AVERAGES.setdefault(first, [])
    for known, average in made:
        if known == others:
            return average
    head = mean_of([model.head for model in heads])
    weights = None
    if isinstance(target, HFTarget):
        weights = weights_of_head(head, None, target.model, target.compressed_weights)
    merged = HeadModel(head, compile=first.model.compiled is not None, weights=weights)
    made.append((others, merged))
    return merged


def mean_of(heads: Sequence[DraftHead]) -> DraftHead:
    """A copy of the first head with the mean of the heads' own weights, using the same modules of the target.
    ValueError if the weights have different shapes."""
    first = heads[0]
    shapes = [{name: weight.shape for name, weight in head.own.items()} for head in heads]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(
            "the heads' weights have different shapes and cannot be averaged: use the routing merged or "
            "confidence"
        )
    shared = [
        module
        for name, module in (("embed_tokens.", first.embed_tokens), ("lm_head.", first.lm_head))
        if name in first.from_target
    ]
    made = copy.deepcopy(first, {id(module): module for module in shared})
    made.fingerprint = None
    with torch.no_grad():
        for name, parameter in made.own.items():
            weights = torch.stack([head.own[name] for head in heads])
            parameter.copy_(weights.to(torch.promote_types(torch.float32, weights.dtype)).mean(0))
    return made
