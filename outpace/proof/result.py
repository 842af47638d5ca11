"""The result of one distribution test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outpace.proof.enumeration import BOUND


@dataclass(frozen=True)
class Proof:
    """The output distribution of one recipe with one combination of options, compared with plain decoding."""

    recipe: str
    models: str
    options: dict[str, Any]  # plain data only
    temperatures: tuple[float, ...]
    tokens: int  # maximum number of new tokens of a request with temperature > 0
    batch: int  # maximum number of rows in a batch
    outcomes: int  # number of different continuations, over all requests
    runs: int  # number of combinations of random choices that lead to them
    error: float | None  # largest difference of a continuation's probability; None: see `fault`
    seconds: float
    allowed: int = 0  # largest draft depth planned in a sampled row
    drafted: int = 0  # number of draft tokens in sampled rows
    accepted: int = 0  # number of draft tokens in sampled rows that were committed
    deepest: int = 0  # depth in its draft tree of the deepest committed draft token
    # how sampling parameters were combined: "crossed" or "paired"; "": none but temperature
    settings: str = ""
    rows: int = 1  # rows of one prompt whose joint distribution was enumerated
    predicted: bool = False  # whether the recipe was given a predicted output (with_prediction.py)
    bound: float = BOUND  # largest error attributed to rounding
    fault: str = ""  # why the enumeration could not be finished
    # whether `runs`, `outcomes`, `tokens`, `drafted`, `accepted` and `deepest` equal those measured with the
    # recipe's default options: then this test did not show that its option has an effect
    same_as_default: bool = False

    @property
    def exact(self) -> bool:
        """Whether the output distribution is that of plain decoding, up to rounding."""
        return self.error is not None and self.error <= self.bound

    @property
    def drafts(self) -> bool:
        """Whether draft tokens were accepted in sampled rows, at depth 2 or more if that was allowed."""
        return self.deepest >= min(self.allowed, 2)

    @property
    def holds(self) -> bool:
        """Whether the distribution is exact and draft tokens were accepted."""
        return self.exact and self.drafts

    @property
    def verdict(self) -> str:
        """Summary: "exact", "WRONG", "EMPTY" (too few accepted draft tokens) or "FAILED" with the reason."""
        if self.fault:
            return f"FAILED: {self.fault}"
        if not self.exact:
            return "WRONG"
        if not self.drafts:
            return f"EMPTY: deepest accepted {self.deepest} of {self.allowed}"
        return "exact"

    def report(self) -> dict[str, Any]:
        """The fields as JSON data, with `holds` and `verdict`."""
        return {**asdict(self), "holds": self.holds, "verdict": self.verdict}
