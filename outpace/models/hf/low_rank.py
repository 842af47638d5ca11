"""A transformers model with low-rank changes to its linear layers (LoRA, Hu et al. 2022), for models that
learn while they decode. The model itself is never changed.

Letters: T tokens, K token ids of the model, r rank, I inputs and O outputs of a linear layer.
"""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from outpace.core.contracts import Target
from outpace.models.hf.target import HFTarget

RANK = 8
RUNS_EAGERLY = "the {} runs eagerly while it learns, since the weights in compiled forwards are fixed"


class LowRankNetwork:
    """A transformers model with low-rank changes to the output of each linear layer, the LM head included: it
    adds x A^T B^T of the layer's input x.

    `weights` holds A (r, I) and B (O, r) of every layer, at least float32; they are replaced, never written
    to. Initially B is 0 and the model unchanged."""

    def __init__(self, model: nn.Module, vocab: int, max_length: int | None, rank: int) -> None:
        """`model` gets hooks; it reads `vocab` token ids, and texts of `max_length` tokens. ValueError if it
        has no linear layers."""
        self._model, self._vocab, self.max_length = model, vocab, max_length
        generator = torch.Generator().manual_seed(0)
        weights: list[Tensor] = []
        with torch.inference_mode(False), torch.no_grad():
            for module in model.modules():
                if not isinstance(module, nn.Linear | Conv1D):
                    continue
                weight = module.weight
                inputs, outputs = weight.shape if isinstance(module, Conv1D) else weight.shape[::-1]
                kind = torch.promote_types(torch.float32, weight.dtype)
                down = torch.randn(rank, inputs, generator=generator, dtype=kind) * inputs**-0.5
                module.register_forward_hook(partial(self._add, len(weights)))
                weights += [down.to(weight.device), torch.zeros(outputs, rank, dtype=kind).to(weight.device)]
        if not weights:
            raise ValueError(
                f"{type(model).__name__} has no linear layers that could learn: use another draft, or do "
                "without learning"
            )
        self._initial = self.weights = tuple(weights)

    def logits(self, tokens: Tensor, weights: tuple[Tensor, ...]) -> Tensor:  # (T,) int64 -> (T, K)
        """The model's logits with other weights after each of these tokens, over the K token ids that it has
        itself, with a gradient if gradients are enabled."""
        tokens = tokens.to(weights[0].device).clamp(max=self._vocab - 1)
        before, self.weights = self.weights, weights
        try:
            return self._model(input_ids=tokens[None], use_cache=False, return_dict=True).logits[0]
        finally:
            self.weights = before

    def _add(self, index: int, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if self.weights is self._initial:
            return output  # nothing is added yet
        down, up = self.weights[index : index + 2]
        return output + (inputs[0].to(down.dtype) @ down.mT @ up.mT).to(output.dtype)


class LowRankAdapter:
    """A second target for a transformers model that shares its weights, and adds low-rank changes to it.
    Memory: twice r * (I + O) numbers per layer, as the initial weights are kept. It runs eagerly, also for a
    compiled draft, and warns of that.

    ValueError for a draft that is no transformers model, that was loaded in inference mode or that has no
    linear layers.
    """

    def __init__(self, draft: Target, rank: int = RANK) -> None:
        if not isinstance(draft, HFTarget):
            raise ValueError(
                f"only a transformers model can learn, and the draft is {type(draft).__name__}: use another "
                "one, or do without learning"
            )
        if any(parameter.is_inference() for parameter in draft.model.parameters()):
            raise ValueError(
                "a draft that was loaded in inference mode cannot learn: load it outside of "
                "torch.inference_mode()"
            )
        if draft.compiled is not None:
            warnings.warn(RUNS_EAGERLY.format("draft model"), stacklevel=2)
        self.target = HFTarget(draft.model).fitted(draft.vocab)
        model = self.target.forward.model  # a private copy, which shares the weights
        self.network = LowRankNetwork(model, self.target.own_vocab, self.target.max_length, rank)
        self.weights = self.network.weights

    def __deepcopy__(self, memo: dict[int, Any]) -> LowRankAdapter:
        """An adapter with weights of its own for the same target."""
        memo[id(self.target)], memo[id(self.network)] = self.target, self.network
        return copy.copy(self)

    def use(self, weights: tuple[Tensor, ...]) -> None:
        """Give the model these weights."""
        self.weights = weights
        self.activate()

    def activate(self) -> None:
        """Give the model the weights of this adapter in place of those of another one for the same target."""
        self.network.weights = self.weights
