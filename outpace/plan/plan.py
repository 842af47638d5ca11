"""A plan: predictions for all methods and batch sizes, memory, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outpace.cost.forward_seconds import ForwardSeconds
from outpace.cost.model_size import ModelSize
from outpace.plan.prediction import PlannedMethod, Prediction, last_that_pays, predict

# largest batch size that is looked at for devices of the table; forwards that were measured are not continued
MOST_ROWS = 4096
WORTH = 1.1  # a predicted speedup below this may well be none: predictions are wrong by up to a fifth


@dataclass(frozen=True)
class Memory:
    """Bytes of the models and of the KV caches of one row."""

    target: float
    drafters: float
    row: float  # of the target's KV cache
    drafters_row: float
    device: float | None = None  # None: not known

    @staticmethod
    def of(
        target: ModelSize, drafters: Sequence[tuple[float, ModelSize]], context: float, device: float | None
    ) -> Memory:
        """`drafters`: bytes of the weights and sizes of each draft model and head."""
        return Memory(
            target.weight_bytes,
            sum(weights for weights, _ in drafters),
            target.kv_bytes(context),
            sum(size.kv_bytes(context) for _, size in drafters),
            device,
        )

    def total(self, rows: int, *, drafting: bool = True) -> float:
        """With so many rows."""
        return self.target + rows * self.row + drafting * (self.drafters + rows * self.drafters_row)

    def most_rows(self) -> int | None:
        """The largest batch that fits beside all models; None where the device's memory is not known."""
        if self.device is None:
            return None
        each = self.row + self.drafters_row
        return max(0, int((self.device - self.target - self.drafters) // each)) if each else MOST_ROWS


@dataclass(frozen=True)
class Plan:
    """Everything that `outpace plan` says."""

    target_name: str
    target: ForwardSeconds
    plain: PlannedMethod
    methods: Sequence[PlannedMethod]
    batches: Sequence[int]
    context: int
    memory: Memory
    measured: Sequence[str]  # sentences
    assumed: Sequence[str]  # sentences
    provenance: Mapping[str, Any]
    settings: Mapping[str, Any]
    most_rows: int = MOST_ROWS  # largest batch size for which the seconds of forwards are known
    # method -> the words of a command that generates with it, with {length} for the draft length
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _known: dict[tuple[str, int], Prediction] = field(default_factory=dict, repr=False)

    @property
    def predictions(self) -> list[Prediction]:
        """Of all methods, batch by batch."""
        return [self.predict(method.name, rows) for rows in self.batches for method in self.methods]

    def predict(self, method: str, rows: int) -> Prediction:
        """The prediction for one of the methods at a batch size; made once."""
        if (method, rows) not in self._known:
            planned = next(each for each in self.methods if each.name == method)
            self._known[method, rows] = predict(self.target, self.plain, planned, rows, self.context)
        return self._known[method, rows]

    def best(self, rows: int) -> Prediction:
        """The method with the largest speedup at a batch size, also if that is below 1."""
        found = [self.predict(method.name, rows) for method in self.methods]
        return max(found, key=lambda each: each.speedup)

    def pays_until(self, method: str | None = None) -> int | None:
        """The largest batch size up to which this method, or the best one, is faster than plain decoding;
        None: not even at the smallest. The largest that is known if it always is."""
        sizes = sorted({*self.batches, *_doubling(self.batches[-1], self.largest)})

        def speedup(rows: int) -> float:
            return self.best(rows).speedup if method is None else self.predict(method, rows).speedup

        return last_that_pays(speedup, sizes)

    @property
    def recommendation(self) -> str:
        """One or two sentences: what to do."""
        first, last = self.batches[0], self.batches[-1]
        paying = [rows for rows in self.batches if self.best(rows).speedup > 1]
        if not paying:
            best = max(map(self.best, self.batches), key=lambda each: each.speedup)
            text = f"do not speculate: the best method, {best.method}, is predicted to be {best.speedup:.2f} "
            text += f"times as fast as plain decoding at batch {best.rows}"
            if best.needed and best.needed.rate is not None:
                text += f"; it would pay there with {best.needed.rate:.0%} of its draft tokens accepted"
            return f"{text}."
        best = self.best(paying[0])
        text = (
            f"use {best.method} with {drafts_in_words(best)}: predicted {best.speedup:.2f} times as fast as "
        )
        text += f"plain decoding at batch {best.rows}"
        if last > best.rows:
            final = self.best(last)
            other = "" if final.method == best.method else f" ({final.method})"
            text += f", {final.speedup:.2f} times at batch {last}{other}"
        until = self.pays_until()
        if until is None:
            text += f"; at batch {first} plain decoding is faster."
        elif until >= self.largest:
            text += f"; it pays at every batch size up to {until}."
        else:
            text += f"; it pays up to batch {until}."
        if best.speedup < WORTH:
            text += " That is within the error of predictions: measure it with outpace bench."
        return text

    @property
    def largest(self) -> int:
        """The largest batch size that is looked at: one that fits in memory, unless more is asked for."""
        fitting = self.memory.most_rows()
        known = self.most_rows if fitting is None else min(self.most_rows, max(1, fitting))
        return max(known, self.batches[-1])

    @property
    def fits(self) -> str:
        """What follows from the memory, as a sentence; "" where the device's memory is not known."""
        rows = self.memory.most_rows()
        if rows is None:
            return ""
        size = f"{(self.memory.device or 0) / 1e9:g} GB"
        if rows < 1:
            return f"The models do not fit in {size}."
        return f"At {self.context} tokens of context {rows} rows fit in {size} beside the models."


def _doubling(start: int, most: int) -> list[int]:
    sizes = [start]
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return [each for each in {*sizes, most} if each <= most]


def drafts_in_words(of: Prediction) -> str:
    """The drafts of the best setting, as part of a sentence."""
    if of.tree_nodes is not None:
        return f"trees of {of.tree_nodes:.0f} tokens in {of.best.length} levels"
    return f"drafts of {of.best.length} token{'s' if of.best.length > 1 else ''}"
