"""The LM head of a model together with the scale or cap that some models apply to its outputs.

Granite and Cohere multiply the outputs of the LM head by a number of the configuration, Gemma 2 caps them. A
draft head or a loss that computes logits from hidden states has to do the same: with the LM head alone the
distribution is too sharp or too flat.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

TOLERANCE = 0.02  # relative norm of the difference between logits that count as equal


class ScaledHead(nn.Linear):
    """An LM head, with shared weights, whose outputs are scaled and capped as in the model."""

    def __init__(self, head: nn.Linear, scale: float, cap: float | None) -> None:
        super().__init__(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
        self.weight, self.bias = head.weight, head.bias
        self.scale, self.cap = scale, cap

    def forward(self, input: Tensor) -> Tensor:  # (..., D) -> (..., V)
        return self.adjusted(super().forward(input))

    def adjusted(self, outputs: Tensor) -> Tensor:
        """The logits for these outputs of the LM head, of any shape."""
        logits = outputs * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


@torch.no_grad()
def logits_head(model: PreTrainedModel) -> nn.Module | None:
    """The map from the input of the LM head to the model's logits, with shared weights: the LM head itself if
    its outputs are the logits. None for a model without an LM head. ValueError if the outputs are changed
    otherwise than by a factor or the configuration's cap. Runs one forward over two tokens."""
    head = model.get_output_embeddings()
    if head is None or any(parameter.is_meta for parameter in head.parameters()):
        return head
    outputs = list[Tensor]()
    hook = head.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        tokens = torch.arange(2, device=next(model.get_input_embeddings().parameters()).device)[None]
        logits = model(input_ids=tokens, use_cache=False, return_dict=True).logits.double()
    finally:
        hook.remove()
    own = outputs[-1].to(logits)
    if _agree(own, logits):
        return head
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    scale = 1.0 if cap else float((own * logits).sum() / own.square().sum())
    if isinstance(head, nn.Linear):
        made = ScaledHead(head, scale, cap)
        if _agree(made.adjusted(own), logits):
            return made
    raise ValueError(
        f"what {type(model).__name__} does to its logits behind the LM head is not supported here"
    )


def _agree(outputs: Tensor, logits: Tensor) -> bool:
    return outputs.shape == logits.shape and bool((outputs - logits).norm() <= TOLERANCE * logits.norm())
