"""What followed at places where the target's hidden state was alike (Gritta et al. 2025, DReSD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outpace.indexes.store import damaged, expect, within

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
BLOCK = 1 << 14  # states projected at once
LISTS_FROM = 50_000  # states; below, comparing with all of them is as fast
NUM_PROBES = 250  # lists that are searched


class HiddenStateIndex:
    """Hidden states by z-score, principal components and length 1, each with the tokens after it; read-only.

    Inner products: by faiss where it is installed, for many states in the lists nearest to the query; without faiss
    all of them, in numpy.
    """

    kind = "dense"

    def __init__(
        self, mean: Floats, components: Floats, keys: Floats, values: Ints, centers: Floats, lists: Ints
    ):
        self.mean = mean  # (d,)
        self.components = components  # (d, dims), divided by the standard deviations
        self.keys = keys  # (n, dims)
        self.values = values  # (n, L)
        self.centers = centers  # (num_lists, dims), or (0, dims): one list
        self.lists = lists  # (n,) the list of each key

    @classmethod
    def build(
        cls,
        keys: ArrayLike,
        values: ArrayLike,
        *,
        dims: int = 64,
        fit: int = 1_000_000,
        tell: Callable[[int], None] | None = None,
    ) -> Self:
        """(n, d) hidden states and (n, L) next tokens, -1 after the end; `keys` may be a memory map.

        `fit`: most states, spread evenly, from which the projection is made. `tell` hears how many were projected.
        """
        states, next_tokens = np.asarray(keys), np.ascontiguousarray(values, np.int32)
        if states.ndim != 2 or next_tokens.ndim != 2 or len(states) != len(next_tokens) or len(states) < 2:
            raise ValueError(
                f"give (n, d) states and (n, L) tokens, two or more, not {states.shape}, {next_tokens.shape}"
            )
        if not 1 <= dims <= states.shape[1]:
            raise ValueError(f"{dims} dimensions of states with {states.shape[1]}: ask for fewer")
        mean, components = _principal(states[:: -(-len(states) // fit)], dims)
        found = cls(
            mean,
            components,
            np.empty((len(states), dims), np.float32),
            next_tokens,
            np.zeros((0, dims), np.float32),
            np.zeros(len(states), np.int32),
        )
        for start in range(0, len(states), BLOCK):
            block = found.project(states[start : start + BLOCK])
            found.keys[start : start + BLOCK] = block
            if tell:
                tell(len(block))
        if len(states) >= LISTS_FROM and find_spec("faiss"):
            found.centers, found.lists = _divide(found.keys)
        return found

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "mean": self.mean,
            "components": self.components,
            "keys": self.keys,
            "values": self.values,
            "centers": self.centers,
            "lists": self.lists,
        }

    @property
    def facts(self) -> dict[str, int]:
        return {"states": len(self.keys), "hidden": len(self.mean)}

    @property
    def nbytes(self) -> int:
        """Of the arrays; faiss keeps a copy of the keys once it was asked."""
        return sum(each.nbytes for each in self.arrays.values())

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self:
        components, keys = expect(arrays, np.float32, components=(None, None), keys=(None, None))
        hidden, dims = components.shape
        mean, _, centers = expect(arrays, np.float32, mean=(hidden,), keys=(None, dims), centers=(None, dims))
        values, lists = expect(arrays, values=(len(keys), None), lists=(len(keys),))
        if not within(lists, max(len(centers), 1)):
            raise damaged()
        return cls(mean, components, keys, values, centers, lists)

    def project(self, hidden: ArrayLike) -> Floats:
        """(n, d) -> (n, dims), rows of length 1."""
        reduced = (np.asarray(hidden, np.float32) - self.mean) @ self.components
        return reduced / np.maximum(np.linalg.norm(reduced, axis=-1, keepdims=True), 1e-12)

    def search(self, hidden: ArrayLike, num: int = 50) -> tuple[Ints, Floats]:
        """(d,) one state -> up to `num` nearest: (num, L) next tokens and (num,) similarity, by fall."""
        query = self.project(np.asarray(hidden)[None])
        num = min(num, len(self.keys))
        if self._faiss is None:
            similarity = self.keys @ query[0]
            best = np.argpartition(-similarity, num - 1)[:num]
            best = best[np.lexsort((best, -similarity[best]))]
            return self.values[best], similarity[best]
        similarity, best = (found[0] for found in self._faiss.search(query, num))
        found = best >= 0  # fewer, if the lists near the query have fewer
        return self.values[best[found]], similarity[found]

    def paths(
        self, hidden: ArrayLike, newest: int, *, num: int = 50, keep: int = 10, length: int = 9
    ) -> Ints:
        """(k, length) what followed the newest token at the nearest states after which it came, -1 after the end.

        Of `num` nearest states the first `keep` that were followed by `newest`, the most alike first.
        """
        values, _ = self.search(hidden, num)
        return values[values[:, 0] == newest][:keep, 1 : 1 + length]

    @cached_property
    def _faiss(self) -> Any:
        """A searcher of faiss over the same keys; None without faiss."""
        if not find_spec("faiss"):
            return None
        import faiss

        dims = self.keys.shape[1]
        if not len(self.centers):
            flat = faiss.IndexFlatIP(dims)
            flat.add(self.keys)
            return flat
        coarse = faiss.IndexFlatIP(dims)
        coarse.add(self.centers)
        divided = faiss.IndexIVFFlat(coarse, dims, len(self.centers), faiss.METRIC_INNER_PRODUCT)
        divided.own_fields, divided.is_trained, divided.nprobe = False, True, NUM_PROBES
        # the lists are known: assigning them again would compare every key with every center
        lists, keys = self.lists.astype(np.int64), np.ascontiguousarray(self.keys)
        divided.add_core(len(keys), faiss.swig_ptr(keys), None, faiss.swig_ptr(lists))
        return divided


def _principal(states: NDArray[Any], dims: int) -> tuple[Floats, Floats]:
    """Mean (d,), and (d, dims) what a difference from it is multiplied with: 1 / deviation, then components."""
    size, total, squares = len(states), np.zeros(states.shape[1]), np.zeros((states.shape[1],) * 2)
    for start in range(0, size, BLOCK):
        total += states[start : start + BLOCK].sum(0, dtype=np.float64)
    mean = total / size
    for start in range(0, size, BLOCK):
        # float64: the covariance of states with a few huge channels would lose the others
        block = states[start : start + BLOCK].astype(np.float64) - mean
        squares += block.T @ block
    deviation = np.sqrt(np.diag(squares) / size)
    scale = np.divide(
        1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-12 * max(deviation.max(), 1e-300)
    )
    _, vectors = np.linalg.eigh(squares / size * scale[:, None] * scale)
    return mean.astype(np.float32), (scale[:, None] * vectors[:, ::-1][:, :dims]).astype(np.float32)


def _divide(keys: Floats) -> tuple[Floats, Ints]:
    """5 sqrt(n) centers of the keys by k-means, and the center of each key."""
    import faiss

    clusters = faiss.Kmeans(keys.shape[1], int(5 * len(keys) ** 0.5), niter=10, spherical=True, seed=0)
    clusters.cp.max_points_per_centroid = 64
    clusters.cp.min_points_per_centroid = 1
    clusters.train(keys)
    _, lists = clusters.index.search(keys, 1)
    return np.ascontiguousarray(clusters.centroids, np.float32), lists[:, 0].astype(np.int32)
