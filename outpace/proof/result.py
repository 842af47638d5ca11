"""The result of one distribution test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from outpace.proof.enumeration import BOUND

LOST = 1e-4  # least difference of a probability for a reference to count as different from plain decoding


@dataclass(frozen=True)
class Proof:
    """The output distribution of one recipe with one combination of options, compared with the promised one:
    plain decoding's or, if the recipe is LOSSY, its reference's."""

    recipe: str
    models: str
    options: dict[str, Any]  # plain data only
    temperatures: tuple[float, ...]
    tokens: int  # maximum number of new tokens of a request with temperature > 0
    batch: int  # maximum number of rows in a batch
    outcomes: int  # number of different continuations, over all requests
    runs: int  # number of combinations of random choices
    error: float | None  # largest difference of a continuation's probability; None: see `fault`
    seconds: float
    allowed: int = 0  # largest draft depth planned in a sampled row
    drafted: int = 0  # number of draft tokens in sampled rows; for a GREEDY method, in all rows
    accepted: int = 0  # number of draft tokens in sampled rows that were committed
    deepest: int = 0  # depth in its draft tree of the deepest committed draft token
    # how sampling parameters were combined: "crossed" or "paired"; "": only the temperature was set
    settings: str = ""
    rows: int = 1  # rows of one prompt whose joint distribution was enumerated
    predicted: bool = False  # whether the recipe was given a predicted output (with_prediction.py)
    bound: float = BOUND  # largest error attributed to rounding
    fault: str = ""  # why the enumeration could not be finished
    # largest difference of a continuation's probability between the reference and plain decoding; None: the
    # method states no reference
    loss: float | None = None
    # whether `runs`, `outcomes`, `tokens`, `drafted`, `accepted` and `deepest` equal those measured with the
    # recipe's default options: then this test did not show that its option has an effect
    same_as_default: bool = False

    @property
    def as_promised(self) -> bool:
        """Whether the output distribution is the promised one, up to rounding."""
        return self.error is not None and self.error <= self.bound

    @property
    def shows_loss(self) -> bool:
        """Whether the reference, if there is one, differs from plain decoding on these models. Else the lossy
        rule was not tested."""
        return self.loss is None or self.loss > LOST

    @property
    def drafts(self) -> bool:
        """Whether draft tokens were accepted in sampled rows, at depth 2 or more if that was allowed."""
        return self.deepest >= min(self.allowed, 2)

    @property
    def holds(self) -> bool:
        """Whether the distribution is as promised, drafts were accepted and a lossy rule had an effect."""
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
