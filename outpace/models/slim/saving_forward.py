"""Forwards with QuickSilver's savings: tokens halt, are fused with the preceding token, or are computed with
fewer bits.

Letters: N tokens of all rows, k of them that a layer runs over, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.forward import Forward
from outpace.models.slim.partial_forward import PartialForward, PartialRun
from outpace.models.slim.savings import Savings, bits, distance, entropy, quantized


class SavingForward(PartialForward):
    """Forwards of a model with savings.

    Fusion is causal: of a group of fused tokens only the first runs through the later layers, and the others
    take its outputs, as the paper's merged tokens share one. A later token never changes an earlier one."""

    def __init__(
        self,
        whole: Forward,
        model: PreTrainedModel,
        savings: Savings,
        exit_logits: Callable[[Tensor], Tensor],
    ) -> None:
        """`exit_logits`: (M, D) outputs of a layer -> (M, V) the logits if the model ended there."""
        self.record_size = 2 * model.config.get_text_config().hidden_size if savings.fusion else 0
        super().__init__(whole, model)
        savings.check(self.num_layers)
        self.savings, self._exit_logits = savings, exit_logits
        # (N,) which tokens were fused; (N, D) states by which this was decided
        self._fused = WeakKeyDictionary[PartialRun, tuple[Tensor, Tensor]]()
        self._final = WeakKeyDictionary[PartialRun, Tensor]()  # (N, D) the last layer's outputs
        self._bits = WeakKeyDictionary[PartialRun, Tensor]()  # (N,)
        if savings.quantize:
            maps = list(self.linear_maps(savings.first_layer))
            known = {id(weight) for linear in maps for weight in linear.parameters()}
            layers = self.layers[savings.first_layer :]
            if any(
                weight.ndim > 1 and id(weight) not in known
                for layer in layers
                for weight in layer.parameters()
            ):
                raise ValueError(
                    f"the layers of {type(model).__name__} compute with other weights than those of linear "
                    "maps, such as experts, whose activations cannot be rounded: leave out quantize"
                )
            for linear in maps:
                linear.register_forward_pre_hook(self._rounded)

    def keeps_entries(self) -> bool:
        return not self.savings.skip_kv

    def after_layer(self, run: PartialRun, layer: int, before: Tensor, after: Tensor) -> None:
        savings, tokens = self.savings, run.running
        if not savings.first_layer <= layer + 1 < self.num_layers:
            return
        entropies = None
        if layer + 1 == savings.first_layer:
            if savings.fusion:
                fused = distance(self._before(run, after), after) < savings.fusion
                self._fused[run] = fused, after
                run.leave(tokens[fused], layer + 1, stored=not savings.skip_kv)
            if savings.quantize:
                entropies = self._entropies(after)
                self._bits[run] = bits(entropies)
        if savings.drift and savings.entropy:
            low = (distance(before, after) < savings.drift) & run.live[tokens]
            if bool(low.any()):  # the LM head only where the first test is passed
                entropies_of_low = self._entropies(after[low]) if entropies is None else entropies[low]
                halted = tokens[low][entropies_of_low < savings.entropy]
                run.leave(halted, layer + 1, stored=not savings.skip_kv)

    def at_end(self, run: PartialRun, states: Tensor) -> Tensor:
        if run not in self._fused:
            return states
        fused, finals = self._fused[run][0], list[Tensor]()
        rows = zip(run.by_row(states), run.by_row(fused), run.records, run.inputs.rows, strict=True)
        for own, is_fused, records, row in rows:
            # index of the last token that was not fused; -1: it is before this forward
            first = torch.arange(len(own), device=own.device).masked_fill(is_fused, -1).cummax(0).values
            final = own[first.clamp_min(0)]
            if row.start:
                final[first < 0] = records.kept[row.start - 1, own.shape[-1] :]
            finals.append(final)
        self._final[run] = torch.cat(finals)
        return self._final[run]

    def kept(self, run: PartialRun) -> Tensor | None:
        if run not in self._fused:
            return None
        return torch.cat((self._fused[run][1], self._final[run]), -1)

    def _before(self, run: PartialRun, states: Tensor) -> Tensor:  # (N, D) -> (N, D)
        """For each token the preceding token's state at the same layer; NaN where there is none."""
        by_row = list[Tensor]()
        for own, records, row in zip(run.by_row(states), run.records, run.inputs.rows, strict=True):
            first = own.new_full((1, own.shape[-1]), torch.nan)
            if row.start:
                first = records.kept[row.start - 1 : row.start, : own.shape[-1]]
            by_row += [first, own[:-1]]
        return torch.cat(by_row)

    def _entropies(self, states: Tensor) -> Tensor:
        self.work.head_tokens += len(states)
        return entropy(self._exit_logits(states))

    def _rounded(self, module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        run = self.now
        if run is None or run not in self._bits:
            return None
        return quantized(arguments[0], self._bits[run][run.running]), *arguments[1:]
