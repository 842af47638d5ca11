"""The outcome of one proof."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outpace.proof.enumeration import BOUND


@dataclass(frozen=True)
class Proof:
    """One enumeration of one recipe, compared with plain decoding."""

    recipe: str
    models: str
    options: dict[str, Any]  # plain data only
    temperatures: tuple[float, ...]
    tokens: int  # of the longest sampled text
    batch: int  # rows decoded together at most
    outcomes: int  # different continuations
    runs: int  # ways to reach them
    error: float | None  # largest difference of a continuation's probability; None: see `fault`
    seconds: float
    allowed: int = 0  # deepest draft path allowed in a sampled row
    drafted: int = 0  # draft tokens in sampled rows
    accepted: int = 0  # of these, committed
    deepest: int = 0  # depth of the deepest of these in its draft tree
    settings: str = ""  # how sampling settings were combined: "crossed" or "paired"; "" without settings
    rows: int = 1  # rows of one prompt whose joint distribution was enumerated
    predicted: bool = False  # with predicted outputs, drafted before the recipe's own drafts
    bound: float = BOUND  # largest error that is put down to rounding
    fault: str = ""  # why the enumeration could not be finished
    same_as_default: bool = False  # the same counts, outcomes and runs as with the default options

    @property
    def exact(self) -> bool:
        """Whether the distribution is that of plain decoding."""
        return self.error is not None and self.error <= self.bound

    @property
    def drafts(self) -> bool:
        """Whether draft tokens were accepted in sampled rows, at depth 2 or more where the options allow
        it."""
        return self.deepest >= min(self.allowed, 2)

    @property
    def holds(self) -> bool:
        """Whether the proof shows what it should."""
        return self.exact and self.drafts

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.fault:
            return f"FAILED: {self.fault}"
        if not self.exact:
            return "WRONG"
        if not self.drafts:
            return f"EMPTY: deepest accepted {self.deepest} of {self.allowed}"
        return "exact"

    def report(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "holds": self.holds, "verdict": self.verdict}
