"""The only source of randomness: every random choice names a key, and a key is used once.

Draws of the target's own tokens are keyed by (seed, absolute position), so that a verifier that lets the
target choose gives token for token what plain decoding gives under the same seed. Every other use is keyed by
(seed, turn, node, use, draw): noise keyed by position alone would be met again after a rejection, when its
outcome has already been looked at, and would bias block-wise and bottom-up rules.

Letters: M choices at once, K options each.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

TARGET = "target"


class Key(NamedTuple):
    """Names M random choices; two choices of one step never share (row, node, use, draw)."""

    rows: Sequence[int]  # (M,) row in the batch
    nodes: Sequence[int]  # (M,) index of the node within its row (`Forest.local`)
    depths: Sequence[int]  # (M,) depth of the node; for use "target" it alone (with the row) makes the key
    use: str  # "target", "draft", "accept", "residual", ...
    draw: int = 0


class Noise(Protocol):
    """Random choices of one step, bound by the session to each row's seed, turn and committed length."""

    def choose(self, probs: Tensor, key: Key) -> Tensor:  # (M, K) -> (M,) int64
        """One option of each row of `probs` (rows need not sum to 1); inverse CDF of one uniform per key."""
        ...

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        """True with probability `accept[m]`, on the host."""
        ...

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:  # (M, K) -> (M, k) int64
        """k options of each row, in order, independent or each without the earlier; -1 when the support is
        used up."""
        ...


class Chooser:
    """`draw` from `choose`, for whoever implements Noise."""

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        raise NotImplementedError

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        if k == 1:
            return self.choose(probs, key)[:, None]
        left, columns = probs if replace else probs.clone(), []
        for index in range(k):
            at = Key(key.rows, key.nodes, key.depths, key.use, key.draw + index)
            if replace:
                columns.append(self.choose(left, at))
                continue
            empty = left.sum(-1) <= 0
            if bool(empty.any()):
                column = self.choose(torch.where(empty[:, None], torch.ones_like(left), left), at)
                columns.append(torch.where(empty, -1, column))
            else:
                column = self.choose(left, at)
                columns.append(column)
            left.scatter_(1, column[:, None], 0)
        return torch.stack(columns, 1)


_MASK = (1 << 64) - 1
WIDE, BLOCK = (
    1 << 15,
    512,
)  # options from which a choice is made in two steps on a CPU, and those of one block


def _mix(value: int) -> int:
    """A 64-bit integer well mixed (the finaliser of splitmix64, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derived(seed: int, index: int) -> int:
    """The seed of one of several samples asked for under one seed; the first keeps it."""
    return seed if index == 0 else _mix(_mix(seed & _MASK) ^ _mix(index)) >> 32


def _number(word: str) -> int:
    return int.from_bytes(word.encode()[:8].ljust(8, b"\0"), "little") ^ len(word)


class KeyedNoise(Chooser):
    """Noise as a pure function of its keys, so that a row's choices do not depend on the batch around it.

    Uniforms are Python integers hashed on the host: at the sizes of one step, far faster than tensor
    arithmetic.
    """

    def __init__(self, seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> None:
        self._length = lengths
        self._position = [_mix(seed & _MASK) for seed in seeds]
        self._turn = [_mix(base ^ _mix(turn + 1)) for base, turn in zip(self._position, turns, strict=True)]
        self._uses: dict[str, int] = {}

    def uniforms(self, key: Key, draw: int = 0) -> list[float]:
        """(M,) numbers in [0, 1) of this key, so many draws further on."""
        if key.use == TARGET:
            length, base = self._length, self._position
            pairs = zip(key.rows, key.depths, strict=True)
            return [(_mix(base[row] + _mix(length[row] + depth)) >> 11) * 2.0**-53 for row, depth in pairs]
        use = self._uses.get(key.use)
        if use is None:
            use = self._uses[key.use] = _mix(_number(key.use))
        use += (key.draw + draw) << 32
        base, pairs = self._turn, zip(key.rows, key.nodes, strict=True)
        return [(_mix(base[row] ^ _mix(use + node)) >> 11) * 2.0**-53 for row, node in pairs]

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        uniform = self.uniforms(key)
        if probs.shape[1] >= WIDE and probs.device.type == "cpu":
            return _choose_wide(probs, uniform)
        # summed in float64: in float32 a large vocabulary would lose its rare tokens to rounding
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        if len(uniform) == 1:
            row = cumulative[0]
            if (
                row.device.type == "cpu"
            ):  # a number on the host is cheaper there, and waits for the device elsewhere
                return torch.searchsorted(row, row[-1].item() * uniform[0], right=True)[None]
            return torch.searchsorted(row, row[-1:] * uniform[0], right=True)
        at = torch.tensor(uniform, dtype=torch.float64, device=probs.device)[:, None]
        return torch.searchsorted(cumulative, cumulative[:, -1:] * at, right=True)[:, 0]

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        if k == 1:
            return self.choose(probs, key)[:, None]
        if not replace and probs.device.type != "cpu":
            return super().draw(probs, k, key, replace=False)
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        uniform = [self.uniforms(key, index) for index in range(k)]
        if replace:
            at = torch.tensor(uniform, dtype=torch.float64, device=probs.device).mT.contiguous()
            return torch.searchsorted(cumulative, cumulative[:, -1:] * at, right=True)
        columns = [
            _without_replacement(sums, each)
            for sums, each in zip(cumulative.numpy(), zip(*uniform, strict=True), strict=True)
        ]
        return super().draw(probs, k, key, replace=False) if None in columns else torch.tensor(columns)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return [uniform < chance for uniform, chance in zip(self.uniforms(key), accept, strict=True)]


def _choose_wide(probs: Tensor, uniform: Sequence[float]) -> Tensor:  # (M, K), (M,) -> (M,)
    """First the block of options, then the option in it: a running sum over all would be written out in
    float64."""
    whole = probs.shape[1] // BLOCK * BLOCK
    parts = [probs[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1, dtype=torch.float64)]
    if whole < probs.shape[1]:
        parts.append(probs[:, whole:].sum(-1, keepdim=True, dtype=torch.float64))
    chosen = []
    for distribution, sums, number in zip(probs, torch.cat(parts, 1).cumsum(-1), uniform, strict=True):
        point = sums[-1].item() * number
        block = _place(sums, point)
        first = BLOCK * block
        inside = distribution[first : first + BLOCK].cumsum(0, dtype=torch.float64)
        chosen.append(first + _place(inside, point - (sums[block - 1].item() if block else 0.0)))
    return torch.tensor(chosen)


def _place(cumulative: Tensor, point: float) -> int:
    """The first sum beyond the point; at rounding's end the last that adds anything."""
    at = int(torch.searchsorted(cumulative, point, right=True))
    return at if at < len(cumulative) else int(torch.searchsorted(cumulative, cumulative[-1].item()))


def _without_replacement(sums: Any, uniform: Sequence[float]) -> list[int] | None:  # (K,) array, (k,) -> (k,)
    """What removing each drawn option and drawing again from the rest gives, on one distribution's cumulative
    sums: a point in what is left becomes a point of the whole by stepping over the options taken. None where
    too little is left for that. On the host, where calling a tensor's search takes longer than searching."""
    total = left = sums.item(-1)
    taken: list[tuple[float, float]] = []  # (start, mass) of each, in order
    found: list[int] = []
    for number in uniform:
        if left < 1e-9 * total:
            return None
        point = number * left
        for start, mass in taken:
            if point >= start:
                point += mass
        index = int(sums.searchsorted(point, "right"))
        start = sums.item(index - 1) if index else 0.0
        mass = sums.item(index) - start if index < len(sums) else 0.0
        if mass <= 0 or index in found:  # the work of rounding
            return None
        left -= mass
        insort(taken, (start, mass))
        found.append(index)
    return found
