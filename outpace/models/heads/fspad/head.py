"""The head of FSPAD (Gui et al. 2024): EAGLE's, with features sampled by tokens and partly aligned outputs.

Letters: R texts, N tokens, D hidden size.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import LlamaConfig

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, head_config, untrained
from outpace.models.heads.eagle.head import EagleHead


class FeatureSampling(nn.Module):
    """Lets a token choose what it needs of the feature before it: the embedding gates the feature in a wider
    space, from which the result is mapped back and added to the feature."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size, wide = config.hidden_size, config.intermediate_size
        self.gate = nn.Linear(size, wide, bias=False)  # of the embedding
        self.up = nn.Linear(size, wide, bias=False)  # of the feature
        self.down = nn.Linear(wide, size, bias=False)

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:  # (R, N, D) each -> (R, N, D)
        return self.down(silu(self.gate(embedded)) * self.up(features)) + features


class OutputAdapter(nn.Module):
    """Adds to a feature what the LM head needs beside it. It is no part of the feature, which stays close to
    the target's and is what the next token reads."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.change = nn.Linear(size, size, bias=False)

    def forward(self, features: Tensor) -> Tensor:  # (..., D) -> (..., D)
        return features + self.change(features)


class FspadHead(EagleHead):
    """As EAGLE's head, but `fc` reads the feature after `FeatureSampling`, and the LM head reads the output
    of the last layer after an `OutputAdapter`, which has the place of the final norm."""

    method = "fspad"

    def __init__(self, config: LlamaConfig, embed: nn.Module, lm_head: nn.Module) -> None:
        super().__init__(config, embed, lm_head, bias=False)
        self.sampling = FeatureSampling(config)
        self.norm = OutputAdapter(config.hidden_size)
        self.state_layer = config.num_hidden_layers - 1  # before the adapter

    def combined(self, embedded: Tensor, features: Tensor) -> dict[str, Tensor]:
        return super().combined(embedded, self.sampling(embedded, features))


def untrained_fspad(target: TargetWithLayers, seed: int = 0) -> DraftHead:
    """A head of FSPAD for a target with random weights."""
    head = FspadHead(head_config(target, target.vocab), target.embed, target.head)
    return untrained(head, target, seed, (head.fc, head.layers, head.sampling, head.norm))
