"""The last norm and LM head of a model, applied to the output of any of its layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.attention import EAGER
from outpace.models.eager.captures import OutputCapture
from outpace.models.eager.private_copy import private_copy
from outpace.models.eager.skipped_modules import skip
from outpace.models.hf.logits_head import logits_head
from outpace.models.skip_set import SkipSet


class ExitHead:
    """The part of a model after its layers, with the model's own weights: gradients flow to these."""

    def __init__(self, model: PreTrainedModel) -> None:
        """ValueError for a model without a list of layers."""
        self._model = private_copy(model, {}, EAGER)
        count = model.config.get_text_config().num_hidden_layers
        layers = OutputCapture(self._model, count).layers
        if layers is None:
            raise ValueError(f"{type(model).__name__} has no list of layers, so no early exits")
        ids = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        skip(self._model, SkipSet.of_layers(range(count)), {"input_ids": ids, "use_cache": False})
        self._last = layers[count - 1]
        # the LM head, followed by the factor or soft cap that some models apply to its outputs (see
        # models/hf/logits_head.py); None for a model without an LM head
        self.lm_head: Any = logits_head(self._model)
        self._norm = self._norm_before_head()

    def inputs(self, states: Tensor) -> Tensor:  # (R, T, D) -> (R, T, D)
        """The inputs of the LM head for these outputs of a layer: the last norm's outputs."""
        if self._norm is not None:
            return self._norm(states)
        with OutputCapture(self._model, 0).capture(frozenset([-1]), logits=False) as captured:
            self(states)
        return captured[-1]

    def __call__(self, states: Tensor) -> Tensor:  # (R, T, D) -> (R, T, V)
        """The logits for these outputs of a layer."""
        if self._norm is not None:
            return self.lm_head(self._norm(states))
        return self._by_model(states)

    def _norm_before_head(self) -> nn.Module | None:
        """The last norm, if its outputs are the inputs of the LM head; None for models that scale or project
        states in between: these are run as a whole with their layers replaced (`_by_model`)."""
        if self.lm_head is None:
            return None
        hidden_size = self._model.config.get_text_config().hidden_size
        states = torch.linspace(-2, 2, 2 * hidden_size, dtype=self._model.dtype, device=self._model.device)
        states = states.view(1, 2, hidden_size)
        norms: list[nn.Module] = []

        def keep(module: nn.Module, inputs: Any) -> None:
            if inputs and inputs[0] is states:
                norms.append(module)

        hooks = [submodule.register_forward_pre_hook(keep) for submodule in self._model.modules()]
        try:
            with torch.no_grad():
                logits = self._by_model(states)
                is_whole = bool(norms) and torch.equal(self.lm_head(norms[0](states)), logits)
        except RuntimeError:  # between norm and LM head there is a projection to another size
            return None
        finally:
            for hook in hooks:
                hook.remove()
        return norms[0] if is_whole else None

    def _by_model(self, states: Tensor) -> Tensor:  # (R, T, D) -> (R, T, V)
        """The logits by a forward of the model without its layers."""

        def replace(module: nn.Module, arguments: Any, output: Any) -> Any:
            return (states, *output[1:]) if isinstance(output, tuple) else states

        ids = torch.zeros(states.shape[:2], dtype=torch.int64, device=states.device)
        hook = self._last.register_forward_hook(replace)
        try:
            return self._model(input_ids=ids, use_cache=False, return_dict=True).logits
        finally:
            hook.remove()
