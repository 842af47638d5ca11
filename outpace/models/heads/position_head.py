"""Draft heads without a KV cache: all that they read of the text is one hidden state of the target.

It is the input of the target's LM head at the token before the root: the state from which the root was
sampled.

Letters: M nodes of one depth, D hidden size of the target, S size of a node's state, K tokens of the draft
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from outpace.core.contracts import TargetWithLayers
from outpace.models.heads.draft_head import DraftHead, make_ready


class PositionHead(nn.Module):
    """A head that reads the paths of a draft tree token by token, all nodes of one depth together.

    A node's state is a vector that encodes the path to it. The target's embedding is used in place, never
    changed or saved."""

    method: ClassVar[str]  # name of the method that the head is for
    # whether logits depend on the path; if not, all nodes of one depth below a root have equal logits
    reads_path: ClassVar[bool] = True
    draft_ids: Tensor | None

    def __init__(
        self, target: TargetWithLayers, max_depth: int | None, draft_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.embed_tokens = target.embed
        self.hidden_size = int(next(target.embed.parameters()).shape[1])
        self.vocab = target.vocab
        # a decoder layer over the text; the head reads its outputs in place of the target's hidden states
        self.prefix: DraftHead | None = None
        self.max_depth = max_depth  # tokens of the longest path that it drafts; None: no limit
        # (K,) token of each logit; None: the whole vocabulary. A buffer, so that it is where the weights are
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        # [d][r]: share of texts in which the head's token of rank r at depth d + 1 is right; empty: not
        # measured
        self.rank_accuracies: tuple[tuple[float, ...], ...] = ()

    def begin(self, hidden: Tensor) -> Tensor:  # (M, D) -> (M, S)
        """The states before the roots, from the target's hidden states at the tokens before them."""
        return hidden

    def forward(self, depth: int, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Read one token (M,) at this depth (roots: 0) after each of the states (M, S). Returns the logits of
        the next tokens (M, K) and the states after these tokens."""
        raise NotImplementedError

    @property
    def num_draft_tokens(self) -> int:
        """K, the number of tokens that can be drafted."""
        return self.vocab if self.draft_ids is None else len(self.draft_ids)

    def is_for(self, target: TargetWithLayers) -> bool:
        """Whether the head was made for this target."""
        return self.embed_tokens is target.embed

    @property
    def own(self) -> dict[str, nn.Parameter]:
        """The parameters that are the head's, not the target's, by name."""
        return {name: parameter for name, parameter in self.named_parameters() if "embed_tokens." not in name}


class Mixer(nn.Module):
    """A block that maps several concatenated vectors of size D, u, to one: R u + SiLU(U u)."""

    def __init__(self, num_vectors: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_vectors * size, size)  # U
        self.residual = nn.Linear(num_vectors * size, size)  # R

    def forward(self, vectors: Tensor) -> Tensor:  # (M, num_vectors × D) -> (M, D)
        return self.residual(vectors) + nn.functional.silu(self.linear(vectors))


class ResidualBlocks(nn.Module):
    """Layers that add SiLU(linear(x)) to their input x."""

    def __init__(self, size: int, num_layers: int, *, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size, bias=bias) for _ in range(num_layers)])

    def forward(self, states: Tensor, dropout: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """`dropout`: applied to the input of every layer."""
        for layer in self.layers:
            states = states if dropout is None else dropout(states)
            states = states + nn.functional.silu(layer(states))
        return states


def ready(head: PositionHead) -> PositionHead:
    """The head in evaluation mode, its weights with the dtype and on the device of the target's embedding."""
    make_ready(head, head.own, next(head.embed_tokens.parameters()))
    return head


def random_parameters(head: PositionHead, seed: int = 0) -> PositionHead:
    """Draw the head's weights from a seed, normally distributed with standard deviation 1 / sqrt(inputs);
    biases become 0, scales of norms stay. Returns the head, ready for use."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.own.items():
            if parameter.dim() > 1:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * parameter.shape[1] ** -0.5)
            elif name.endswith("bias"):
                parameter.zero_()
    return ready(head)
