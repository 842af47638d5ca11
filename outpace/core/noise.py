"""The only source of randomness: every random choice has a key, and no key is used twice.

Tokens sampled from the target are keyed by (seed, absolute position), so that match verification generates
the tokens of plain decoding with the same seed. All other choices are keyed by (seed, step, node, use, draw):
keyed by position alone, the step after a rejection would reuse the noise that decided the rejection, which
biases block and bottom-up verification.

Letters: M choices at once, K options of each.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from outpace.core.device_copies import on_device

TARGET = "target"


class Key(NamedTuple):
    """The keys of M random choices; two choices of one step never share (row, node, use, draw)."""

    rows: Sequence[int]  # (M,) row of the batch
    nodes: Sequence[int]  # (M,) index of the node within its row (`Forest.local`)
    depths: Sequence[int]  # (M,) depth of the node; for use "target" the key is (row, depth) alone
    use: str  # purpose of the choices: "target", "draft", "accept", "residual", ...
    draw: int = 0  # index of the draw among those with the same node and use


class Noise(Protocol):
    """Random choices of one step, made from each row's seed, step number and number of committed tokens."""

    def choose(self, probs: Tensor, key: Key) -> Tensor:  # (M, K) -> (M,) int64
        """Index of one option sampled from each row of `probs` (rows need not sum to 1), by the inverse CDF
        at one uniform number per key."""
        ...

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        """M booleans, on the host: the m-th is True with probability `accept[m]`."""
        ...

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:  # (M, K) -> (M, k) int64
        """Indices of k options sampled from each row, in drawing order, with or without replacement; -1 where
        no option of positive probability is left."""
        ...


class Chooser:
    """Base class of Noise implementations: implements `draw` by calling `choose` k times."""

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
            if not empty.is_cpu or bool(empty.any()):  # `bool` would wait for an accelerator
                column = self.choose(torch.where(empty[:, None], torch.ones_like(left), left), at)
                columns.append(torch.where(empty, -1, column))
            else:
                column = self.choose(left, at)
                columns.append(column)
            left.scatter_(1, column[:, None], 0)
        return torch.stack(columns, 1)


_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # increment of the state of splitmix64: 2**64 divided by the golden ratio
# with at least WIDE options, a CPU samples first a block of BLOCK options and then an option in it
WIDE, BLOCK = (1 << 15, 512)


def _mix(value: int) -> int:
    """A hash of a 64-bit integer (the finaliser of splitmix64, Steele et al. 2014)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derived(seed: int, index: int) -> int:
    """The seed of sample `index` of a request for several samples; sample 0 has the request's seed."""
    # subtracted, as positions of a text are added to the state
    return seed if index == 0 else _mix(_mix(seed & _MASK) - _GAMMA * index) >> 32


def _number(word: str) -> int:
    """A 64-bit number for a word; that of a word of more than eight letters is a hash of all of them."""
    letters = word.encode()
    number = len(word)
    for begin in range(0, len(letters), 8):
        part = int.from_bytes(letters[begin : begin + 8].ljust(8, b"\0"), "little")
        number = (_mix(number) if begin else number) ^ part
    return number


class KeyedNoise(Chooser):
    """Noise as a pure function of its keys, so that a row's choices do not depend on the rest of the batch.

    Uniform numbers are hashes computed in Python, far faster than tensor operations for the few keys of a
    step.
    """

    def __init__(self, seeds: Sequence[int], turns: Sequence[int], lengths: Sequence[int]) -> None:
        self._length = lengths
        # states of splitmix64; hashed, so that seed s at position p + 1 is unlike seed s + 1 at position p
        self._position = [_mix(seed & _MASK) for seed in seeds]
        pairs = zip(self._position, turns, strict=True)
        self._turn = [_mix(_mix(base) + _GAMMA * turn) for base, turn in pairs]
        self._uses: dict[str, int] = {}

    def uniforms(self, key: Key, draw: int = 0) -> list[float]:
        """(M,) uniform numbers in [0, 1) for this key, with `draw` added to the key's draw index."""
        if key.use == TARGET:
            length, base = self._length, self._position
            pairs = zip(key.rows, key.depths, strict=True)
            at = [base[row] + _GAMMA * (length[row] + depth) for row, depth in pairs]
            return [(_mix(state) >> 11) * 2.0**-53 for state in at]
        use = self._uses.get(key.use)
        if use is None:
            use = self._uses[key.use] = _mix(_number(key.use))
        use += (key.draw + draw) << 32
        base, pairs = self._turn, zip(key.rows, key.nodes, strict=True)
        return [(_mix(base[row] ^ _mix(use + node)) >> 11) * 2.0**-53 for row, node in pairs]

    def choose(self, probs: Tensor, key: Key) -> Tensor:
        uniform = self.uniforms(key)
        if _is_wide(probs):
            return _draw_wide(probs, [uniform], replace=True)[:, 0]
        # summed in float64: in float32 rare tokens of a large vocabulary would be lost to rounding
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        if len(uniform) == 1:
            row = cumulative[0]
            if row.device.type == "cpu":  # a Python number is faster, but would synchronise a GPU
                return torch.searchsorted(row, row[-1].item() * uniform[0], right=True)[None]
            return torch.searchsorted(row, row[-1:] * uniform[0], right=True)
        at = on_device(uniform, torch.float64, probs.device)[:, None]
        return torch.searchsorted(cumulative, cumulative[:, -1:] * at, right=True)[:, 0]

    def draw(self, probs: Tensor, k: int, key: Key, *, replace: bool) -> Tensor:
        if k == 1:
            return self.choose(probs, key)[:, None]
        if not replace and probs.device.type != "cpu":
            return super().draw(probs, k, key, replace=False)
        uniform = [self.uniforms(key, index) for index in range(k)]
        if _is_wide(probs):
            return _draw_wide(probs, uniform, replace=replace)
        cumulative = probs.cumsum(-1, dtype=torch.float64)
        if replace:
            at = on_device(uniform, torch.float64, probs.device).mT.contiguous()
            return torch.searchsorted(cumulative, cumulative[:, -1:] * at, right=True)
        columns = [
            _without_replacement(sums, numbers)
            for sums, numbers in zip(cumulative.numpy(), zip(*uniform, strict=True), strict=True)
        ]
        return super().draw(probs, k, key, replace=False) if None in columns else torch.tensor(columns)

    def flip(self, accept: Sequence[float], key: Key) -> list[bool]:
        return [uniform < chance for uniform, chance in zip(self.uniforms(key), accept, strict=True)]


def _is_wide(probs: Tensor) -> bool:
    return probs.shape[1] >= WIDE and probs.device.type == "cpu"


def _draw_wide(
    probs: Tensor, uniform: Sequence[Sequence[float]], *, replace: bool
) -> Tensor:  # (M, K), (k, M) -> (M, k)
    """Sample k options of each row, each time first a block of options, then an option in it: this avoids a
    float64 cumulative sum over all options. -1 where no option of positive probability is left."""
    whole = probs.shape[1] // BLOCK * BLOCK
    parts = [probs[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1, dtype=torch.float64)]
    if whole < probs.shape[1]:
        parts.append(probs[:, whole:].sum(-1, keepdim=True, dtype=torch.float64))
    rows = zip(probs, torch.cat(parts, 1), zip(*uniform, strict=True), strict=True)
    return torch.tensor([_draw_from_blocks(*row, replace=replace) for row in rows])


def _draw_from_blocks(
    distribution: Tensor, masses: Tensor, uniform: Sequence[float], *, replace: bool
) -> list[int]:  # (K,), (B,), (k,) -> (k,)
    """Sample k options, given the total probability of each block of options (changed in place)."""
    sums = masses.cumsum(0)
    without: dict[int, Tensor] = {}  # block -> its probabilities, with 0 for the options drawn
    drawn: list[int] = []
    for number in uniform:
        point = sums[-1].item() * number
        if drawn and not sums[-1] > 0:
            drawn.append(-1)
            continue
        block = _index_of(sums, point)
        first = BLOCK * block
        inside = without.get(block, distribution[first : first + BLOCK])
        before = sums[block - 1].item() if block else 0.0
        at = _index_of(inside.cumsum(0, dtype=torch.float64), point - before)
        drawn.append(first + at)
        if not replace and len(drawn) < len(uniform):
            if block not in without:
                inside = without[block] = inside.clone()
            inside[at] = 0
            masses[block] = inside.sum(dtype=torch.float64)
            sums = masses.cumsum(0)
    return drawn


def _index_of(cumulative: Tensor, point: float) -> int:
    """Index of the first cumulative sum above `point`; if rounding puts `point` beyond the last sum, the last
    option of positive probability."""
    at = int(torch.searchsorted(cumulative, point, right=True))
    return at if at < len(cumulative) else int(torch.searchsorted(cumulative, cumulative[-1].item()))


def _without_replacement(sums: Any, uniform: Sequence[float]) -> list[int] | None:  # (K,) array, (k,) -> (k,)
    """Indices of k options drawn without replacement from one distribution, given its cumulative sums.

    A point in the remaining mass is mapped to the full distribution by skipping the options drawn before.
    None if too little mass is left or rounding yields an invalid option. In numpy: a call of torch's
    searchsorted takes longer than the search."""
    total = left = sums.item(-1)
    taken: list[tuple[float, float]] = []  # (start, mass) of the options drawn, by start
    indices: list[int] = []
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
        if mass <= 0 or index in indices:  # a rounding error
            return None
        left -= mass
        insort(taken, (start, mass))
        indices.append(index)
    return indices
