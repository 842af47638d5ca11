"""The distribution of a target with SpecEE's early exits, computed plainly: one text at a time, without KV
caches, with a forward over the whole preceding text for each token.

Letters: T tokens of a text, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from outpace.models.draft_vocabulary import over_vocabulary
from outpace.models.eager.attention import EAGER
from outpace.models.eager.captures import OutputCapture
from outpace.models.eager.private_copy import private_copy
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.models.predictors.exits.predictor import NUM_CANDIDATES, features
from outpace.models.slim.exit_forward import RECENT, ExitRule


class ExitReference:
    """Implementation of core.contracts.Reference for a transformers model."""

    description = "an approximation of the target, whose tokens may exit early (SpecEE)"

    def __init__(self, target: HFTarget, rule: ExitRule, head: HeadModel) -> None:
        self._model, self._head = private_copy(target.model, {}, EAGER), private_copy(head.head, {}, EAGER)
        layers = OutputCapture(self._model, target.num_layers).layers
        assert layers is not None
        self._layers, self._rule = list(layers)[: target.num_layers], rule
        self._opened, self._vocab = head, target.vocab

    @torch.no_grad()
    def logits(self, texts: Sequence[Sequence[int]], prompt_length: int) -> Tensor:
        return torch.stack([self._after(list(text), prompt_length) for text in texts])

    def _after(self, text: list[int], prompt_length: int) -> Tensor:  # (V,)
        """The logits after a text."""
        depths, inputs = list[int](), list[Tensor]()  # of the tokens so far; (D,) inputs of the LM head
        last = torch.empty(0)
        for token in range(len(text)):
            states = self._states(text[: token + 1], depths)
            depth = len(self._layers)
            if token and token >= prompt_length - 1:
                depth = self._exit(states, self._candidates(text[: token + 1], inputs), depths)
            last = states[depth - 1]
            depths.append(depth)
            inputs.append(self._rule.head.inputs(last[None, None])[0, 0])
        return self._rule.head(last[None, None])[0, 0]

    def _exit(self, states: list[Tensor], ids: Tensor, depths: list[int]) -> int:
        probs = None
        for layer in range(1, len(self._layers)):
            if not self._rule.is_checked(layer, depths[-RECENT:]):
                continue
            after = states[layer - 1][None]
            given, probs = features(self._rule.candidate_logits(after, ids), probs)
            if self._rule.passes(given, layer)[0] and self._rule.confirmed(after, ids)[0]:
                return layer
        return len(self._layers)

    def _candidates(self, text: list[int], inputs: list[Tensor]) -> Tensor:  # (1, C)
        weight = next(self._opened.head.parameters())
        read = self._opened.head.fuse(torch.stack(inputs).to(weight))[None]
        ids = torch.tensor([text[1:]], device=read.device)
        places = torch.arange(ids.shape[1], device=read.device)[None]
        logits = self._head(input_ids=ids, position_ids=places, features=read).logits[0, -1:]
        logits = over_vocabulary(logits, self._opened.head.draft_ids, self._vocab)
        return logits.topk(min(NUM_CANDIDATES, self._vocab)).indices

    def _states(self, text: list[int], depths: list[int]) -> list[Tensor]:  # L × (D,)
        """The outputs of all layers at the last token of a text; earlier tokens exited after `depths`."""
        size, outputs, hooks = len(text), list[Tensor](), list[Any]()

        def hide(layer: int) -> Any:
            gone = torch.tensor([*(depth <= layer for depth in depths), False])

            def changed(value: Any) -> Any:
                if not isinstance(value, Tensor) or value.shape != (1, 1, size, size):
                    return value
                mask = gone.to(value.device)[None, :] & ~torch.eye(
                    size, dtype=torch.bool, device=value.device
                )
                return value.masked_fill(mask, torch.finfo(value.dtype).min)

            def hook(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
                return tuple(map(changed, args)), {name: changed(value) for name, value in keywords.items()}

            return hook

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            outputs.append((output[0] if isinstance(output, tuple) else output)[0, -1])

        for index, layer in enumerate(self._layers):
            hooks.append(layer.register_forward_pre_hook(hide(index), with_kwargs=True))
            hooks.append(layer.register_forward_hook(keep))
        try:
            self._model(input_ids=torch.tensor([text], device=self._model.device), use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return outputs
