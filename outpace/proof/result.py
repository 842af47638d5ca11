"""The result of one distribution test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outpace.proof.enumeration import BOUND

LOST = 1e-4  # least difference of a probability that shows that a reference is not plain decoding


@dataclass(frozen=True)
class Proof:
    """The output distribution of one recipe with one combination of options, compared with the one that it
    promises: plain decoding's or, if it is LOSSY, that of the reference it states."""

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
    drafted: int = 0  # number of draft tokens in sampled rows; of a GREEDY method, in all rows
    accepted: int = 0  # number of draft tokens in sampled rows that were committed
    deepest: int = 0  # depth in its draft tree of the deepest committed draft token
    # how sampling parameters were combined: "crossed" or "paired"; "": none but temperature
    settings: str = ""
    rows: int = 1  # rows of one prompt whose joint distribution was enumerated
    predicted: bool = False  # whether the recipe was given a predicted output (with_prediction.py)
    bound: float = BOUND  # largest error attributed to rounding
    fault: str = ""  # why the enumeration could not be finished
    # of a LOSSY method: largest difference of a continuation's probability between its reference and plain
    # decoding; None: it states no reference
    loss: float | None = None
    # whether `runs`, `outcomes`, `tokens`, `drafted`, `accepted` and `deepest` equal those measured with the
    # recipe's default options: then this test did not show that its option has an effect
    same_as_default: bool = False

    @property
    def as_promised(self) -> bool:
        """Whether the output distribution is the one that is promised, up to rounding."""
        return self.error is not None and self.error <= self.bound

    @property
    def shows_loss(self) -> bool:
        """Whether a reference, if one is stated, differs from plain decoding on these models. Else the proof
        would not have tested what is lossy."""
        return self.loss is None or self.loss > LOST

    @property
    def drafts(self) -> bool:
        """Whether draft tokens were accepted in sampled rows, at depth 2 or more if that was allowed."""
        return self.deepest >= min(self.allowed, 2)

    @property
    def holds(self) -> bool:
        """Whether the distribution is the promised one, drafts were accepted and what is lossy shows."""
        return self.as_promised and self.drafts and self.shows_loss

    @property
    def verdict(self) -> str:
        """Summary: "exact", "exact at temperature 0" (GREEDY), "as stated" (LOSSY), "WRONG", "EMPTY" (too few
        accepted draft tokens, or a reference that does not differ from plain decoding) or "FAILED" with the
        reason."""
        if self.fault:
            return f"FAILED: {self.fault}"
        if not self.as_promised:
            return "WRONG"
        if not self.drafts:
            return f"EMPTY: deepest accepted {self.deepest} of {self.allowed}"
        if not self.shows_loss:
            return "EMPTY: on these models the stated reference is plain decoding: give @recipe proven_with"
        if self.loss is not None:
            return "as stated"
        return "exact at temperature 0" if self.temperatures == (0.0,) else "exact"

    def report(self) -> dict[str, Any]:
        """The fields as JSON data, with `holds` and `verdict`."""
        return {**asdict(self), "holds": self.holds, "verdict": self.verdict}
