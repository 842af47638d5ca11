"""The distribution of a target with QuickSilver's savings, computed plainly: one text at a time, without a KV
cache, with all layers over all tokens; outputs that the savings leave out are discarded.

Letters: T tokens of a text, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outpace.models.eager.attention import EAGER
from outpace.models.eager.captures import OutputCapture
from outpace.models.eager.private_copy import private_copy
from outpace.models.hf.target import HFTarget
from outpace.models.slim.savings import Savings, bits, distance, entropy, quantized


class SavingReference:
    """Implementation of core.contracts.Reference for a transformers model."""

    description = "an approximation of the target, which saves layers for some tokens (QuickSilver)"

    def __init__(self, target: HFTarget, savings: Savings, exit_logits: Callable[[Tensor], Tensor]) -> None:
        self._model = private_copy(target.model, {}, EAGER)
        layers = OutputCapture(self._model, target.num_layers).layers
        assert layers is not None
        self._layers = list(layers)[: target.num_layers]
        self._savings, self._exit_logits = savings, exit_logits

    @torch.no_grad()
    def logits(self, texts: Sequence[Sequence[int]], prompt_length: int) -> Tensor:
        """Prompt tokens are treated like all others."""
        return torch.stack([self.all_logits(text)[-1] for text in texts])

    @torch.no_grad()
    def all_logits(self, text: Sequence[int]) -> Tensor:  # (T, V)
        """The logits after every token of a text."""
        ids = torch.tensor([list(text)], device=self._model.device)
        hooks = _Hooks(self._layers, self._savings, self._exit_logits, len(text))
        try:
            return self._model(input_ids=ids, use_cache=False, return_dict=True).logits[0]
        finally:
            hooks.remove()


class _Hooks:
    """Hooks on the layers for one forward over one text."""

    def __init__(
        self,
        layers: Sequence[nn.Module],
        savings: Savings,
        exit_logits: Callable[[Tensor], Tensor],
        num_tokens: int,
    ) -> None:
        self._savings, self._exit_logits, self._num_layers = savings, exit_logits, len(layers)
        self._depth = [len(layers)] * num_tokens  # number of layers after which each token exited
        self._representative = list(range(num_tokens))  # of a fused token: the first of its group
        self._bits: Tensor | None = None
        self._hooks: list[Any] = []
        for index, layer in enumerate(layers):
            self._hooks.append(layer.register_forward_pre_hook(self._hide(index), with_kwargs=True))
            self._hooks.append(layer.register_forward_hook(self._correct(index), with_kwargs=True))
            if savings.quantize and index >= savings.first_layer:
                for module in layer.modules():
                    if type(module).__name__ in ("Linear", "Conv1D"):
                        self._hooks.append(module.register_forward_pre_hook(self._round))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hide(self, index: int) -> Callable[..., Any]:
        """Tokens that exited are hidden from all others in later layers."""

        def hook(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            gone = torch.tensor([depth <= index for depth in self._depth])
            if not self._savings.skip_kv or not bool(gone.any()):
                return None
            size = len(gone)

            def changed(value: Any) -> Any:
                if not isinstance(value, Tensor) or value.shape != (1, 1, size, size):
                    return value
                return value.masked_fill(gone.to(value.device), torch.finfo(value.dtype).min)

            return tuple(map(changed, args)), {name: changed(value) for name, value in keywords.items()}

        return hook

    def _correct(self, index: int) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
            before = (args[0] if args else keywords["hidden_states"])[0]
            after = (output[0] if isinstance(output, tuple) else output)[0].clone()
            for token, depth in enumerate(self._depth):
                if depth <= index:  # it exited earlier and keeps its state
                    after[token] = before[token]
            if index + 1 < self._num_layers:
                self._decide(index, before, after)
            else:
                after = after[self._representative]
            return (after[None], *output[1:]) if isinstance(output, tuple) else after[None]

        return hook

    def _decide(self, index: int, before: Tensor, after: Tensor) -> None:
        savings, done = self._savings, index + 1
        if done < savings.first_layer:
            return
        if done == savings.first_layer and savings.fusion:
            for token in range(1, len(after)):
                if distance(after[token - 1], after[token]) < savings.fusion:
                    self._representative[token] = self._representative[token - 1]
                    self._depth[token] = done
        if done == savings.first_layer and savings.quantize:
            self._bits = bits(entropy(self._exit_logits(after)))
        for token in range(len(after)):
            if self._depth[token] < self._num_layers or not savings.drift:
                continue
            if distance(before[token], after[token]) < savings.drift:
                if entropy(self._exit_logits(after[token][None]))[0] < savings.entropy:
                    self._depth[token] = done

    def _round(self, module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        if self._bits is None:
            return None
        return quantized(arguments[0], self._bits), *arguments[1:]
