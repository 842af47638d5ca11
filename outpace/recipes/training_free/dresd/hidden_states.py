"""Nearest-neighbor index from hidden states of the target to the next tokens (Gritta et al. 2025, DReSD)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outpace.indexes.store import Arrays, in_range, require, typed

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
BLOCK = 1 << 14  # number of states projected at once, to bound the memory
MIN_STATES_FOR_LISTS = 50_000  # with fewer states an exhaustive search is as fast as inverted lists
MAX_FLOAT = float(np.finfo(np.float32).max)
NUM_PROBES = 250  # number of inverted lists that a search scans (faiss nprobe)


class HiddenStateIndex:
    """Read-only index of hidden states, each with the tokens that follow it in its text.

    Keys are hidden states after z-score, PCA and scaling to unit length; similarity is the inner product.
    With faiss, large indexes are searched by inverted lists (IVF); without faiss all keys are scanned.
    """

    kind = "hidden-states"

    def __init__(
        self, mean: Floats, components: Floats, keys: Floats, values: Ints, centers: Floats, lists: Ints
    ):
        self.mean = mean  # (d,) of the hidden states
        self.components = components  # (d, dims) principal components, divided by the standard deviations
        self.keys = keys  # (n, dims) projected hidden states, unit vectors
        self.values = values  # (n, L) next tokens of each key, -1 after the end of a text
        self.centers = centers  # (num_lists, dims) centers of the inverted lists; (0, dims): no lists
        self.lists = lists  # (n,) index of the inverted list of each key

    @classmethod
    def build(
        cls,
        keys: ArrayLike,
        values: ArrayLike,
        *,
        dims: int = 64,
        fit: int = 1_000_000,
        on_progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Build the index from hidden states and next tokens; ValueError for wrong shapes or dims.

        keys: (n, d) hidden states, may be a memory map; values: (n, L) next tokens, -1 after the end of a
        text; dims: dimensions of the keys after PCA; fit: maximum number of evenly spaced states from which
        the PCA is computed; on_progress: called with the number of states just projected.
        """
        states, next_tokens = np.asarray(keys), np.ascontiguousarray(values, np.int32)
        if states.ndim != 2 or next_tokens.ndim != 2 or len(states) != len(next_tokens) or len(states) < 2:
            raise ValueError(
                f"give (n, d) states and (n, L) tokens, two or more, not {states.shape}, {next_tokens.shape}"
            )
        if not 1 <= dims <= states.shape[1]:
            raise ValueError(f"{dims} dimensions of states with {states.shape[1]}: ask for fewer")
        mean, components = _principal(states[:: -(-len(states) // fit)], dims)
        index = cls(
            mean,
            components,
            np.empty((len(states), dims), np.float32),
            next_tokens,
            np.zeros((0, dims), np.float32),
            np.zeros(len(states), np.int32),
        )
        for start in range(0, len(states), BLOCK):
            block = index.project(states[start : start + BLOCK])
            index.keys[start : start + BLOCK] = block
            if on_progress:
                on_progress(len(block))
        if len(states) >= MIN_STATES_FOR_LISTS and find_spec("faiss"):
            index.centers, index.lists = _clustered(index.keys)
        return index

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
    def metadata(self) -> dict[str, int]:
        return {"states": len(self.keys), "hidden": len(self.mean)}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; after the first search faiss holds a further copy of the keys."""
        return sum(each.nbytes for each in self.arrays.values())

    @property
    def max_token(self) -> int:
        return int(self.values.max(initial=-1))

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        (components,) = typed(arrays, np.float32, components=(None, None))
        hidden, dims = components.shape
        shapes = {"mean": (hidden,), "keys": (None, dims), "centers": (None, dims)}
        mean, keys, centers = typed(arrays, np.float32, **shapes)
        values, lists = typed(arrays, values=(len(keys), None), lists=(len(keys),))
        require(
            keys.size > 0 and values.shape[1] > 0,
            in_range(values, -1, np.inf),
            in_range(lists, 0, max(len(centers), 1)),
            all(in_range(each, -1.001, 1.001) for each in (keys, centers)),  # unit vectors, up to rounding
            all(in_range(each, -MAX_FLOAT, MAX_FLOAT) for each in (mean, components)),
        )
        return cls(mean, components, keys, values, centers, lists)

    def project(self, hidden: ArrayLike) -> Floats:
        """Project hidden states (n, d) to keys (n, dims) of unit length."""
        reduced = (np.asarray(hidden, np.float32) - self.mean) @ self.components
        return reduced / np.maximum(np.linalg.norm(reduced, axis=-1, keepdims=True), 1e-12)

    def search(self, hidden: ArrayLike, num: int = 50) -> tuple[Ints, Floats]:
        """(num, L) next tokens and (num,) similarities of the keys nearest to a state (d,), nearest first.

        Fewer than `num` if the index or the scanned lists have fewer keys.
        """
        query = self.project(np.asarray(hidden)[None])
        num = min(num, len(self.keys))
        if self._faiss is None:
            similarity = self.keys @ query[0]
            best = np.argpartition(-similarity, num - 1)[:num]
            best = best[np.lexsort((best, -similarity[best]))]
            return self.values[best], similarity[best]
        similarity, best = (rows[0] for rows in self._faiss.search(query, num))
        valid = best >= 0  # faiss returns -1 if the scanned lists hold fewer than `num` keys
        return self.values[best[valid]], similarity[valid]

    def continuations(
        self, hidden: ArrayLike, last_token: int, *, num: int = 50, keep: int = 10, length: int = 9
    ) -> Ints:
        """(k, length) tokens after `last_token` in texts with similar hidden states, -1 after a text's end.

        hidden: (d,) the state from which `last_token` was predicted. Of the `num` nearest states, the `keep`
        most similar ones whose next token is `last_token` are used, most similar first.
        """
        values, _ = self.search(hidden, num)
        return values[values[:, 0] == last_token][:keep, 1 : 1 + length]

    @cached_property
    def _faiss(self) -> Any:
        """A faiss index of the keys (IVF if there are centers, else flat); None without faiss."""
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
        # pass the stored list of each key: assigning them again would compare every key with every center
        lists, keys = self.lists.astype(np.int64), np.ascontiguousarray(self.keys)
        divided.add_core(len(keys), faiss.swig_ptr(keys), None, faiss.swig_ptr(lists))
        return divided


def _principal(states: NDArray[Any], dims: int) -> tuple[Floats, Floats]:
    """Mean (d,) and (d, dims) projection matrix of centered states: z-score, then the first `dims` principal
    components."""
    size, total, squares = len(states), np.zeros(states.shape[1]), np.zeros((states.shape[1],) * 2)
    for start in range(0, size, BLOCK):
        total += states[start : start + BLOCK].sum(0, dtype=np.float64)
    mean = total / size
    for start in range(0, size, BLOCK):
        # float64: some channels are orders of magnitude larger, and float32 sums would lose the others
        block = states[start : start + BLOCK].astype(np.float64) - mean
        squares += block.T @ block
    deviation = np.sqrt(np.diag(squares) / size)
    scale = np.divide(
        1, deviation, out=np.zeros_like(deviation), where=deviation > 1e-12 * max(deviation.max(), 1e-300)
    )
    _, vectors = np.linalg.eigh(squares / size * scale[:, None] * scale)
    return mean.astype(np.float32), (scale[:, None] * vectors[:, ::-1][:, :dims]).astype(np.float32)


def _clustered(keys: Floats) -> tuple[Floats, Ints]:
    """Spherical k-means with 5 sqrt(n) centers: (num_lists, dims) centers and (n,) center index per key."""
    import faiss

    clusters = faiss.Kmeans(keys.shape[1], int(5 * len(keys) ** 0.5), niter=10, spherical=True, seed=0)
    clusters.cp.max_points_per_centroid = 64
    clusters.cp.min_points_per_centroid = 1
    clusters.train(keys)
    _, lists = clusters.index.search(keys, 1)
    return np.ascontiguousarray(clusters.centroids, np.float32), lists[:, 0].astype(np.int32)
