"""Service level objectives: the latency that a request must meet to count towards goodput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.bench.load.record import RequestRecord


@dataclass(frozen=True)
class Objectives:
    """Upper limits in milliseconds; None: no limit."""

    time_to_first_token: float | None = None
    # of the mean over a request's tokens, its time per output token: the gaps between chunks are longer with
    # speculative decoding, whose chunks hold several tokens, though the text comes no later
    inter_token_latency: float | None = None

    @property
    def given(self) -> bool:
        return self.time_to_first_token is not None or self.inter_token_latency is not None

    def met_by(self, record: RequestRecord) -> bool:
        """Whether a request succeeded within the limits; its number of tokens must be known."""
        if record.failed:
            return False
        first, rest = self.time_to_first_token, self.inter_token_latency
        per_token = record.time_per_output_token
        return (first is None or 1000 * record.time_to_first_token <= first) and (
            rest is None or per_token is None or 1000 * per_token <= rest
        )

    def count(self, records: Sequence[RequestRecord]) -> int | None:
        """The number of requests that meet the objectives; None if there are none to meet, or if that cannot
        be said because the server did not report numbers of tokens."""
        unknown = any(record.output_tokens is None for record in records if not record.failed)
        if not self.given or (self.inter_token_latency is not None and unknown):
            return None
        return sum(map(self.met_by, records))
