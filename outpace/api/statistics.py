"""Acceptance and speed statistics of one request, with the names that vLLM uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outpace.core.contracts import Step


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one request. A speculative step is one with at least one draft token for this request."""

    num_spec_steps: int
    num_draft_tokens: int  # nodes of the drafted trees, roots excluded
    num_accepted_draft_tokens: int
    num_accepted_prediction_tokens: int  # accepted draft tokens that come from the caller's prediction
    num_rejected_prediction_tokens: int
    acceptance_histogram: list[int]  # [n]: number of speculative steps that accepted n draft tokens
    num_steps: int  # forward passes of the target that generated tokens, with or without draft tokens
    num_prompt_tokens: int
    num_cached_tokens: int  # tokens of the prompt whose KV entries a server's prefix cache had
    num_tokens: int  # new tokens
    seconds: float  # from the time at which this request joined the batch, prompt included, to its last token
    seed: int

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens per speculative step, bonus token included: 1 + accepted / speculative steps."""
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps if self.num_spec_steps else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted draft tokens divided by draft tokens."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, with the reading of the prompt in the time."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All fields and the three derived rates, as JSON values."""
        derived = ("mean_acceptance_length", "draft_acceptance_rate", "tokens_per_second")
        return {name: getattr(self, name) for name in derived} | asdict(self)


@dataclass
class StepCounter:
    """Number of steps, drafted and accepted tokens of one row so far."""

    num_steps: int = 0
    num_draft_tokens: int = 0
    accepted: list[int] = field(default_factory=list[int])  # accepted draft tokens per speculative step
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0

    def count(self, step: Step, row: int, num_tokens: int) -> int:
        """Count a step that added `num_tokens` tokens to a row; returns its number of accepted tokens."""
        forest = step.draft.tree.forest
        drafted = len(forest.nodes[row]) - 1
        # a stop token or stop string inside the accepted path ends the text before the path's last node
        accepted = min(forest.depths[step.verdict.leaf[row]], num_tokens)
        self.num_steps += 1
        if drafted:
            self.num_draft_tokens += drafted
            self.accepted.append(accepted)
        return accepted

    def compare(self, predicted: Sequence[int], accepted: Sequence[int]) -> None:
        """Count a step's draft tokens from the prediction (`predicted`) as accepted or rejected.

        The accepted ones are the common prefix with `accepted`, the accepted tokens of the step.
        """
        pairs = enumerate(zip(predicted, accepted, strict=False))
        kept = next((i for i, (one, other) in pairs if one != other), min(len(predicted), len(accepted)))
        self.num_accepted_prediction_tokens += kept
        self.num_rejected_prediction_tokens += len(predicted) - kept

    def done(
        self, num_prompt_tokens: int, num_cached_tokens: int, num_tokens: int, seconds: float, seed: int
    ) -> Statistics:
        """The statistics of the row, from the counters and these totals."""
        histogram = [0] * (max(self.accepted, default=0) + 1)
        for accepted in self.accepted:
            histogram[accepted] += 1
        return Statistics(
            num_spec_steps=len(self.accepted),
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_draft_tokens=sum(self.accepted),
            num_accepted_prediction_tokens=self.num_accepted_prediction_tokens,
            num_rejected_prediction_tokens=self.num_rejected_prediction_tokens,
            acceptance_histogram=histogram,
            num_steps=self.num_steps,
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=num_cached_tokens,
            num_tokens=num_tokens,
            seconds=seconds,
            seed=seed,
        )
