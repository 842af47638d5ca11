"""Token counts and acceptance statistics of a response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest
from typing import Any

from outpace.api.row_output import Piece, Result
from outpace.serving.http.schemas.fields import SamplingBody


def usage(
    num_prompt_tokens: int,
    results: Sequence[Result],
    num_reasoning_tokens: Callable[[Sequence[int]], int] = lambda tokens: 0,  # of the tokens of a sample
) -> dict[str, Any]:
    """The counts of a response: those of the samples together, and of each prompt once."""
    statistics = [result.statistics for result in results]
    generated = sum(len(result.tokens) for result in results)
    num_read = sum(each.num_prompt_tokens - each.num_cached_tokens for each in statistics)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": num_prompt_tokens + generated,
        # samples of a prompt may each read it
        "prompt_tokens_details": {"cached_tokens": max(0, num_prompt_tokens - num_read)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(num_reasoning_tokens(result.tokens) for result in results),
            "accepted_prediction_tokens": sum(each.num_accepted_prediction_tokens for each in statistics),
            "rejected_prediction_tokens": sum(each.num_rejected_prediction_tokens for each in statistics),
        },
    }


class UsageSoFar:
    """The field `usage` of the chunks of a stream before its last one."""

    def __init__(self, body: SamplingBody, num_prompt_tokens: int, num_samples: int) -> None:
        self._body, self._num_prompt_tokens = body, num_prompt_tokens
        self._generated = [0] * num_samples

    def add(self, index: int, output: Piece | Result) -> None:
        """Count the tokens of a piece of a sample, or those of the whole sample."""
        num = len(output.tokens)
        self._generated[index] = num if isinstance(output, Result) else self._generated[index] + num

    def field(self) -> dict[str, Any]:
        """The counts so far; null, or no field, as the request asks."""
        if not self._body.usage_in_chunks:
            return {"usage": None} if self._body.include_usage else {}
        generated = sum(self._generated)
        counts = {"prompt_tokens": self._num_prompt_tokens, "completion_tokens": generated}
        return {"usage": counts | {"total_tokens": self._num_prompt_tokens + generated}}


def metrics(body: SamplingBody, results: Sequence[Result]) -> dict[str, Any]:
    """The field `metrics` of a response, if the request asks for it: acceptance statistics under the names of
    vLLM's server."""
    if not body.include_metrics:
        return {}
    statistics = [result.statistics for result in results]
    drafts = sum(each.num_spec_steps for each in statistics)
    drafted = sum(each.num_draft_tokens for each in statistics)
    accepted = sum(each.num_accepted_draft_tokens for each in statistics)
    # a step that accepted n tokens accepted one at each of the positions 0 to n - 1
    reached = [list(accumulate(reversed(each.acceptance_histogram[1:]))) for each in statistics]
    per_position = [sum(each) for each in zip_longest(*(row[::-1] for row in reached), fillvalue=0)]
    speculation = {
        "num_drafts": drafts,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "num_accepted_tokens_per_pos": per_position,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
    }
    return {"metrics": {"speculative_decoding": speculation}}
