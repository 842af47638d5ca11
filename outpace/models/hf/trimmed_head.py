"""A copy of a transformers model whose LM head computes the logits of some tokens only.

Letters: K tokens whose logits are computed, V vocabulary size, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.private_copy import private_copy
from outpace.models.hf.logits_head import ScaledHead
from outpace.models.openvino.compressed_weights import CompressedWeights, with_matrix


def with_trimmed_head(
    model: PreTrainedModel,
    ids: Tensor,  # (K,) different token ids in increasing order
    weights: CompressedWeights | None = None,  # of the model
) -> tuple[PreTrainedModel, CompressedWeights | None]:
    """A copy of the model whose LM head has the rows `ids` only, and its compressed weights.

    The model is not changed, and the copy shares all its other weights. The rows are copied: an input
    embedding that is tied to the LM head keeps all of its rows, and later changes of the LM head do not
    affect the copy. `draft_ids` of the copy are `ids`. ValueError if the LM head is not a linear layer."""
    name, head = type(model).__name__, model.get_output_embeddings()
    known = (nn.Linear, ScaledHead)  # other subclasses may do more than multiply by their weights
    if not isinstance(head, nn.Linear) or type(head) not in known or head.weight.is_meta:
        kind = "no LM head" if head is None else f"an LM head that is no linear layer ({type(head).__name__})"
        raise ValueError(f"{name} has {kind}, which cannot be reduced to some tokens: use another draft")
    made = private_copy(model)
    whole, rows = made.get_output_embeddings(), ids.to(head.weight.device)
    with torch.no_grad():
        trimmed = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
        weight = nn.Parameter(head.weight[rows], requires_grad=False)
        trimmed.weight = weight
        if head.bias is not None:
            trimmed.bias = nn.Parameter(head.bias[rows], requires_grad=False)
        if isinstance(head, ScaledHead):
            trimmed = ScaledHead(trimmed, head.scale, head.cap)
    places = [
        (module, child)
        for module in made.modules()
        for child, submodule in module.named_children()
        if submodule is whole
    ]
    for module, child in places:
        setattr(module, child, trimmed.eval())
    made.draft_ids = rows
    if weights is None:
        return made, None
    matrix = next(key for key, parameter in made.named_parameters() if parameter is weight)
    return made, with_matrix(weights, matrix, weight)
