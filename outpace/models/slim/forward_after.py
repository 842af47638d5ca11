"""Forwards of a model that begin after one of its layers, with that layer's outputs as input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.core.contracts import Want
from outpace.core.skip_set import SkipSet
from outpace.models.hf.forward import Forward
from outpace.models.hf.forward_inputs import ForwardInputs
from outpace.models.hf.forward_outputs import ForwardOutputs
from outpace.models.slim.skipped_modules import check_sharing, skip


class ForwardAfter(Forward):
    """The layers after `layer` and the LM head, which read `features`: the outputs of that layer."""

    def __init__(self, whole: Forward, model: PreTrainedModel, layer: int) -> None:
        """`whole`: the forwards of the whole model, on the same KV cache."""
        check_sharing(whole, SkipSet.of_layers(range(layer + 1)))
        super().__init__(model)
        skip(self.model, SkipSet.of_layers(range(layer + 1)), self.one_token())
        self.planes, self.packs, self.dense = whole.planes, whole.packs, whole.dense
        self._layer = layer

    def _run(
        self,
        inputs: ForwardInputs,
        nodes: list[int],
        tokens: Tensor,
        want: Want,
        logits: bool,
        features: Tensor | None,
    ) -> ForwardOutputs:
        assert features is not None

        def replace(module: nn.Module, arguments: Any, output: Any) -> Any:
            states = features[None]
            return (states, *output[1:]) if isinstance(output, tuple) else states

        hook = self.captures.layer(self._layer).register_forward_hook(replace)
        try:
            return super()._run(inputs, nodes, tokens, want, logits, None)
        finally:
            hook.remove()
