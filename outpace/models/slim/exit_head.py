"""What a model would predict if it ended after any of its layers: its last norm and its LM head."""

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
    """The part of a model behind its layers, with the model's own weights: gradients flow to these."""

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
        """The inputs of the LM head after these outputs of a layer: its norm's outputs."""
        if self._norm is not None:
            return self._norm(states)
        with OutputCapture(self._model, 0).capture(frozenset([-1]), logits=False) as found:
            self(states)
        return found[-1]

    def __call__(self, states: Tensor) -> Tensor:  # (R, T, D) -> (R, T, V)
        """The logits after these outputs of a layer."""
        if self._norm is not None:
            return self.lm_head(self._norm(states))
        return self._by_model(states)

    def _norm_before_head(self) -> nn.Module | None:
        """The last norm, if the logits are those of the LM head after it; None for models that scale
        or project states, which run as a whole, with masks and rotary angles that nothing needs."""
        if self.lm_head is None:
            return None
        hidden_size = self._model.config.get_text_config().hidden_size
        states = torch.linspace(-2, 2, 2 * hidden_size, dtype=self._model.dtype, device=self._model.device)
        states = states.view(1, 2, hidden_size)
        found: list[nn.Module] = []

        def keep(module: nn.Module, inputs: Any) -> None:
            if inputs and inputs[0] is states:
                found.append(module)

        hooks = [each.register_forward_pre_hook(keep) for each in self._model.modules()]
        try:
            with torch.no_grad():
                logits = self._by_model(states)
                is_whole = bool(found) and torch.equal(self.lm_head(found[0](states)), logits)
        except RuntimeError:  # between norm and LM head there is a projection to another size
            return None
        finally:
            for hook in hooks:
                hook.remove()
        return found[0] if is_whole else None

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
