"""How a model learns to predict from its early layers: a target (LayerSkip, Elhoushi et al. 2024) or a draft
model with several exits (S2D, Kavehzadeh et al. 2024).

Letters: R texts, T tokens, M columns (see training.lessons.lesson), V vocabulary size, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.captures import OutputCapture
from outpace.models.slim.exit_head import ExitHead
from outpace.models.slim.exits import default_thresholds
from outpace.training import losses
from outpace.training.config import EarlyExits
from outpace.training.features import Batch
from outpace.training.lessons.lesson import DrafterLesson, following


class ExitsLesson(DrafterLesson):
    """A model whose exits share its norm and its LM head."""

    def __init__(self, model: PreTrainedModel, target_head: nn.Module) -> None:
        own = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        super().__init__(own, target_head)
        self.model = model
        count = model.config.get_text_config().num_hidden_layers
        layers = OutputCapture(model, count).layers
        assert layers is not None
        self._layers = list(layers)[:count]
        self._head = (ExitHead(model),)  # shares the weights; in a tuple, so that it is no submodule

    def _num_parameters(self, num_layers: int) -> int:
        """Number of parameters of the first layers and of everything outside of layers."""
        skipped = self._layers[num_layers:]
        whole = sum(parameter.numel() for parameter in self.model.parameters())
        return whole - sum(p.numel() for layer in skipped for p in layer.parameters())

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:  # (R, T, V)
        return losses.cross_entropy(logits[:, :-1], batch.tokens[:, 1:], batch.is_token[:, 1:])

    def _run(self, batch: Batch, dropped: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """The outputs of all layers (R, T, D) and the logits (R, T, V)."""
        states: list[Tensor] = []

        def hook(module: nn.Module, arguments: Any, given: dict[str, Any], output: Any) -> Any:
            before = arguments[0] if arguments else given["hidden_states"]
            after = output[0] if isinstance(output, tuple) else output
            if dropped is not None:
                is_dropped = dropped[len(states)].to(after.device)[:, None, None]
                after = torch.where(is_dropped, before, after)
            states.append(after)
            return (after, *output[1:]) if isinstance(output, tuple) else after

        hooks = [layer.register_forward_hook(hook, with_kwargs=True) for layer in self._layers]
        try:
            logits = self.model(input_ids=batch.tokens, use_cache=False, return_dict=True).logits
        finally:
            for handle in hooks:
                handle.remove()
        return states, logits


class EarlyExitLesson(ExitsLesson):
    """Next-token prediction after several layers at once, while layers are dropped at random; or, at the same
    places, forward KL from the distribution that the target had before training.

    Layer l of L is dropped in each text with probability p · (exp(l · ln 2 / (L - 1)) - 1): the first never,
    the last most often. By `weighting`, losses of later exits count more, or all early exits count the same.
    In a step the last layer is learned, and one in `rotation` early exits, which are drawn at random. In the
    evaluation the model up to its exit drafts, and the target is the whole model in its present state."""

    def __init__(self, model: PreTrainedModel, target_head: nn.Module, settings: EarlyExits) -> None:
        super().__init__(model, target_head)
        self.settings = settings
        count = len(self._layers)
        self.exit_layer = exit_layer(settings, count)
        learned = settings.layers or range(1, count)
        self._learned = [layers - 1 for layers in learned]  # indices of the layers before the trained exits

    @property
    def num_draft_parameters(self) -> int:
        return self._num_parameters(self.exit_layer)

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        states, logits = self._run(batch, self._dropped(len(batch.tokens), noise))
        turn = int(torch.randint(self.settings.rotation, (), generator=noise))
        exits = [layer for at, layer in enumerate(self._learned) if at % self.settings.rotation == turn]
        weights = [exit_weight(layer, len(states), self.settings) for layer in (*exits, len(states) - 1)]
        all_logits = [*(self._head[0](states[layer]) for layer in exits), logits]
        loss = self._divergence(batch) if self.settings.labels == "target" else self._loss
        terms = zip(weights, all_logits, strict=True)
        return torch.stack([weight / sum(weights) * loss(own, batch) for weight, own in terms]).sum()

    def _divergence(self, batch: Batch) -> Callable[[Tensor, Batch], Tensor]:
        """A function from the logits that one exit computes, (R, T, V), to its loss: the mean over tokens of
        KL(p || q), where q is the exit's distribution and p that of the target as it was before training."""
        head = self._target_head[0]
        with torch.no_grad():
            target_logits = head(batch.hidden[-1][:, :-1].to(next(head.parameters()).dtype)).float()
        return lambda logits, batch: losses.forward_kl(logits[:, :-1], target_logits, batch.is_token[:, 1:])

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        states, _ = self._run(batch)
        logits = self._head[0](states[self.exit_layer - 1])
        for step in range(num_steps):
            yield self.at_columns(following(logits, 1 + step), batch)

    def target_logits(self, batch: Batch, step: int) -> Tensor:
        with torch.no_grad():
            return self.at_columns(following(self._run(batch)[1], 1 + step), batch).float()

    def _dropped(self, texts: int, noise: torch.Generator) -> Tensor:  # (L, R) bool
        """In which texts each layer is dropped."""
        count = len(self._layers)
        rates = torch.tensor([drop_rate(layer, count, self.settings.dropout) for layer in range(count)])
        return torch.rand(count, texts, generator=noise) < rates[:, None]


class SortedLesson(ExitsLesson):
    """Sorted fine-tuning (S2D): the sum of the losses of next-token prediction at all exits. A draft token is
    predicted by the exit that `s2d` uses with its default thresholds."""

    def __init__(self, model: PreTrainedModel, target_head: nn.Module, exits: Sequence[int]) -> None:
        super().__init__(model, target_head)
        self.exits, self._thresholds = tuple(exits), default_thresholds(len(exits))
        # layers after the last exit get no gradient, so several processes would wait for it in vain
        behind = {id(parameter) for layer in self._layers[exits[-1] :] for parameter in layer.parameters()}
        self.trained = {name: weight for name, weight in self.trained.items() if id(weight) not in behind}

    @property
    def num_draft_parameters(self) -> int:
        return self._num_parameters(self.exits[-1])

    def forward(self, batch: Batch, noise: torch.Generator) -> Tensor:
        return torch.stack([self._loss(logits, batch) for logits in self.exit_logits(batch)]).sum()

    def exit_logits(self, batch: Batch) -> list[Tensor]:  # (R, T, V) each
        """The logits of every exit."""
        states, _ = self._run(batch)
        return [self._head[0](states[layers - 1]) for layers in self.exits]

    def drafted(self, batch: Batch, num_steps: int) -> Iterator[Tensor]:
        *early, used = self.exit_logits(batch)
        for logits, threshold in reversed(list(zip(early, self._thresholds, strict=False))):
            is_sure = logits.float().softmax(-1).amax(-1) >= threshold
            used = torch.where(is_sure[..., None], logits, used)
        for step in range(num_steps):
            yield self.at_columns(following(used, 1 + step), batch)


def exit_layer(settings: EarlyExits, num_layers: int) -> int:
    """Number of layers to draft with: from the settings, else a quarter of the model's layers or, if only
    some exits are trained, the trained exit nearest to that."""
    quarter = max(1, num_layers // 4)
    nearest = min(settings.layers, key=lambda layer: (abs(layer - quarter), layer), default=quarter)
    return settings.layer or nearest


def drop_rate(layer: int, num_layers: int, largest: float) -> float:
    """The probability with which a layer is dropped in a text."""
    if num_layers == 1:
        return 0.0
    return largest * (math.exp(layer * math.log(2) / (num_layers - 1)) - 1)


def exit_weight(layer: int, num_layers: int, settings: EarlyExits) -> float:
    """The weight of the loss after a layer, relative to the other exits learned in the step."""
    scale, last = settings.scale, num_layers - 1
    if settings.weighting == "uniform":
        return 1.0 if layer == last else scale
    if layer < last:
        return scale * layer * (layer + 1) / 2
    return last + scale * sum(range(last))
