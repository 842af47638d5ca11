"""The target's hidden states at the tokens of training texts: computed for a batch, or read from disk.

Letters: R texts of a batch, T tokens of the longest of them, D hidden size.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from outpace.models.eager.captures import OutputCapture
from outpace.models.hf.target import HFTarget
from outpace.training.marked_answers import SKIPPED
from outpace.training.texts import DataError, Example


@dataclass(frozen=True)
class Batch:
    """Texts with the target's hidden states, padded at the end."""

    tokens: Tensor  # (R, T) int64
    is_token: Tensor  # (R, T) bool, false at padding
    learns: Tensor  # (R, T) bool: the target generated the token, so a drafter learns to predict it
    hidden: dict[int, Tensor]  # layer -> (R, T, D)
    labels: Tensor | None = None  # (R, T) int64 of marked answers; see training.marked_answers

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        hidden = {layer: states.to(device) for layer, states in self.hidden.items()}
        labels = None if self.labels is None else self.labels.to(device)
        return Batch(self.tokens.to(device), self.is_token.to(device), self.learns.to(device), hidden, labels)


class FeatureSource:
    """Makes batches of texts with the outputs of `layers`; those that `store` wrote are read from disk."""

    def __init__(
        self, target: HFTarget, examples: Sequence[Example], layers: Sequence[int], folder: Path
    ) -> None:
        self.examples = examples
        self._target, self._layers, self.folder = target, tuple(layers), folder

    def store(self, limit: int, advance: Callable[[str, int], None]) -> int:
        """Write the hidden states of the first texts, as many as fit into `limit` bytes together with those
        on disk already; returns the bytes used. DataError if the disk is full."""
        self.folder.mkdir(parents=True, exist_ok=True)
        used = 0
        for index in range(len(self.examples)):
            path = self._path(index)
            if layers := self._layers_to_write(path):
                outputs = self._forward([self.examples[index]], layers)
                tensors = {str(layer): states[0] for layer, states in outputs.items()}
                if used + sum(tensor.nbytes for tensor in tensors.values()) > limit:
                    break
                self._write(tensors, path)
            used += path.stat().st_size
            if used > limit:
                break
            advance("reading with the target", 1)
        return used

    def batch(self, indices: Sequence[int]) -> Batch:
        """The texts with these indices."""
        texts = [self.examples[index] for index in indices]
        stored = [self._path(index) for index in indices]
        if not all(path.exists() for path in stored):
            return self.computed(texts)
        files = [load_file(path) for path in stored]
        if not all(str(layer) in tensors for tensors in files for layer in self._layers):
            return self.computed(texts)
        width = max(len(text.tokens) for text in texts)
        hidden = {
            layer: torch.stack([_widened(tensors[str(layer)], width) for tensors in files])
            for layer in self._layers
        }
        return _batch(texts, hidden)

    def computed(self, texts: Sequence[Example]) -> Batch:
        """A batch of any texts, with the outputs of the layers from a forward without a KV cache."""
        return _batch(texts, self._forward(texts, self._layers))

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:07d}.safetensors"

    def _layers_to_write(self, path: Path) -> Sequence[int]:
        """The layers to write to a file: none if it has all that are needed; else these and the layers that
        it has, which other runs may need."""
        if not path.exists():
            return self._layers
        with safe_open(path, "pt") as file:
            stored = set(map(int, file.keys()))
        return () if stored.issuperset(self._layers) else sorted(stored.union(self._layers))

    @torch.no_grad()
    def _forward(
        self, texts: Sequence[Example], layers: Sequence[int]
    ) -> dict[int, Tensor]:  # layer -> (R, T, D)
        if not layers:
            return {}
        tokens, is_token = _padded(texts)
        model = self._target.forward.model
        device = self._target.device
        capture = OutputCapture(model, self._target.num_layers)
        with capture.capture(frozenset(layers), False) as captured:
            model(
                input_ids=tokens.to(device),
                attention_mask=is_token.long().to(device),
                use_cache=False,
                return_dict=True,
            )
        return {layer: captured[layer] for layer in layers}

    def _write(self, tensors: dict[str, Tensor], path: Path) -> None:
        partial = path.with_suffix(".partial")
        try:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, partial)
            os.replace(partial, path)
        except (OSError, RuntimeError) as error:  # safetensors raises an error of its own for a full disk
            partial.unlink(missing_ok=True)
            if getattr(error, "errno", None) in (None, errno.ENOSPC, errno.EDQUOT):
                raise DataError(
                    f"the hidden states do not fit on the disk of {path.parent}: "
                    "set a smaller capture.disk_gigabytes, or 0 to compute them in every step"
                ) from error
            raise


def _batch(texts: Sequence[Example], hidden: dict[int, Tensor]) -> Batch:
    tokens, is_token = _padded(texts)
    learns = is_token.clone()
    for row, text in enumerate(texts):
        learns[row, : text.first] = False
    labels = None
    if any(text.labels for text in texts):
        labels = torch.full(tokens.shape, SKIPPED)
        for row, text in enumerate(texts):
            labels[row, : len(text.labels)] = torch.tensor(text.labels, dtype=torch.int64)
    return Batch(tokens, is_token, learns, hidden, labels)


def _padded(texts: Sequence[Example]) -> tuple[Tensor, Tensor]:  # (R, T), (R, T)
    width = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), width, dtype=torch.int64)
    is_token = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.tensor(text.tokens)
        is_token[row, : len(text.tokens)] = True
    return tokens, is_token


def _widened(states: Tensor, width: int) -> Tensor:  # (T', D) -> (T, D)
    return torch.cat((states, states.new_zeros(width - len(states), states.shape[1])))
