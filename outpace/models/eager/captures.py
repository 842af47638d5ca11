"""Hooks that capture layer outputs and the input of the LM head during one forward, and attention weights by
node.

Hooks are registered only for forwards in which such an output is requested. The LM head's input is captured
at the head itself, because some architectures scale or project it after the last layer. If no logits are
requested, the same hook passes no tokens to the head.

Letters: N tokens of a forward, n tokens of one row, T cache positions, D hidden size, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.forward.row_inputs import RowInputs


class OutputCapture:
    """Captures the outputs of a model's layers and the input of its LM head."""

    def __init__(self, model: PreTrainedModel, num_layers: int) -> None:
        self.head = model.get_output_embeddings()
        self.num_layers = num_layers
        # the text decoder of a multimodal model: its vision model has a list of layers too
        decoder = model.get_decoder()
        self.layers = next(
            (
                module
                for module in decoder.modules()
                if isinstance(module, nn.ModuleList) and len(module) >= num_layers > 0
            ),
            None,
        )

    @property
    def first_layer(self) -> frozenset[int]:
        """The first layer, as `capture` takes it; empty for a model without a list of layers."""
        return frozenset() if self.layers is None else frozenset({0})

    @contextmanager
    def capture(
        self,
        wanted: frozenset[int],
        logits: bool,
        keep: Tensor | None = None,  # indices of the tokens that the LM head receives; None: all
    ) -> Iterator[dict[int, Tensor]]:
        """Context manager around one forward: yields a dict layer -> (1, N, D), filled while the model runs.
        Without `logits` the LM head receives no tokens. ValueError for a layer that the model lacks."""
        captured: dict[int, Tensor] = {}
        with ExitStack() as stack:
            for layer in sorted(wanted - {-1}):
                hook = self.layer(layer).register_forward_hook(_output_hook(captured, layer))
                stack.callback(hook.remove)
            if self.head is not None and (-1 in wanted or not logits):
                hook = self.head.register_forward_pre_hook(_head_hook(captured, -1 in wanted, logits, keep))
                stack.callback(hook.remove)
            elif -1 in wanted:
                raise ValueError(
                    "this model has no output embeddings, so the LM head's input cannot be captured: "
                    "request a layer's output"
                )
            yield captured

    def layer(self, layer: int) -> nn.Module:
        """The module of this layer. ValueError for a layer that the model lacks."""
        if self.layers is None or not 0 <= layer < self.num_layers:
            last = self.num_layers - 1
            raise ValueError(
                f"there is no layer {layer}: layers are 0 to {last}, and -1 is the LM head's input"
            )
        return self.layers[layer]


def _output_hook(captured: dict[int, Tensor], layer: int) -> Any:
    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        captured[layer] = output[0] if isinstance(output, tuple) else output

    return keep


def _head_hook(captured: dict[int, Tensor], wanted: bool, logits: bool, keep: Tensor | None) -> Any:
    def select(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        states, *rest = inputs
        if wanted:
            captured[-1] = states
        if not logits:
            return states[:, :0], *rest
        return None if keep is None else (states[:, keep], *rest)

    return select


def per_node(weights: Tensor, row: RowInputs, num_nodes: int) -> list[Tensor]:  # (H, n, T) -> n × (H, seen)
    """Attention weights of each of the last `num_nodes` tokens of a row over the tokens visible to it, in the
    order of their cache positions."""
    total = row.end - row.start
    nodes = []
    for index in range(total - num_nodes, total):
        if row.visible is None:
            nodes.append(weights[:, index, : row.start + index + 1])
            continue
        visible = row.visible[index - (total - len(row.visible))].to(weights.device)
        nodes.append(_joined(weights[:, index], row.base, visible))
    return nodes


def _joined(weights: Tensor, base: int, visible: Tensor) -> Tensor:  # (H, T), (T - base,) -> (H, seen)
    seen = weights.new_ones(weights.shape[-1], dtype=visible.dtype)
    seen[base:] = visible
    return weights[:, seen]
