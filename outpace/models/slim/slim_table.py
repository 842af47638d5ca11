"""A table model that stands for another one without some of its layers, for proofs of self-speculation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outpace.core.contracts import Cache, Want
from outpace.core.tree import TokenTree
from outpace.models.eager.cache_view import NOT_REWOUND
from outpace.models.skip_set import SkipSet
from outpace.models.table import TableCache, TableTarget

NOISE = 1.5  # standard deviation of the change of the logits if all layers were skipped


class SlimTable(TableTarget):
    """Implementation of core.contracts.ReadsTargetCache. Its logits are the target's with changes that grow
    with the number of skipped sub-layers; tokens that are impossible under the target stay impossible."""

    def __init__(self, target: TableTarget, skip_set: SkipSet) -> None:
        """ValueError for a skip set that does not suit the model."""
        skip_set.check(target.num_layers)
        self.__dict__.update(target.__dict__)
        self._target, self.skip_set, self._caches = target, skip_set, []
        share = len(skip_set) / (2 * target.num_layers)
        seed = sum(2 ** (2 * layer) for layer in skip_set.attention)
        seed += sum(2 ** (2 * layer + 1) for layer in skip_set.mlp)
        noise = torch.randn(target.logits.shape, generator=torch.Generator().manual_seed(seed))
        self.logits = target.logits + NOISE * share * noise.to(target.logits)

    @property
    def carried_layer(self) -> None:
        """None: a table has no layers to continue from."""
        return None

    def outputs(
        self, tree: TokenTree, slots: Sequence[int], cache: Cache, layer: int
    ) -> tuple[int, Tensor]:  # (N - first, V)
        """The first node that was computed, and the outputs of a layer at it and all later nodes."""
        scores = self.score(tree, slots, cache, Want(hidden=frozenset({layer})))
        return scores.first, scores.hidden[layer]

    def _hidden(self, states: Sequence[int], want: Want) -> dict[int, Tensor]:
        """The remaining layers have the same outputs as in the target."""
        return self._target._hidden(states, want)

    def view(self, cache: Cache) -> TableView:
        """The target's cache as this model sees it."""
        assert isinstance(cache, TableCache)
        return TableView(cache)

    def reread(self, cache: Cache, slot: int, text: Tensor, begin: int) -> Tensor:  # (T,) -> (T - begin, V)
        """Logits after each token of a committed text from index `begin` on."""
        tokens = text.tolist()
        return self.logits[[self.state(tokens[: end + 1]) for end in range(begin, len(tokens))]]


class TableView(TableCache):
    """A view of a target's cache: its states after committed tokens, and separate states of draft nodes."""

    def __init__(self, base: TableCache) -> None:
        # the same lists, so the initialiser, which makes new ones, is not called
        self.__dict__.update(base.__dict__)
        self._base = base
        self.states = []
        self.discard()

    def grow(self, slots: int) -> None:
        self._base.grow(slots)

    def extend(self, tree: TokenTree, slots: Sequence[int], gap: object, model: TableTarget) -> int:
        assert gap is None, "the target reads committed tokens"
        return super().extend(tree, slots, None, model)

    def commit(self, tree: TokenTree, leaf: Sequence[int], slots: Sequence[int]) -> None:
        assert all(node == -1 for node in leaf), "the target commits"
        self.discard()

    def rewind(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        raise ValueError(NOT_REWOUND)

    def release(self, slots: Sequence[int]) -> None:
        """Does nothing: the target frees its slots."""


class TableReference:
    """Implementation of core.contracts.Reference for a table that stands for an approximate target."""

    description = "a table other than the target's"

    def __init__(self, table: TableTarget) -> None:
        self._table = table

    def logits(self, texts: Sequence[Sequence[int]], prompt_length: int) -> Tensor:
        return self._table.logits[[self._table.state(text) for text in texts]].double()
