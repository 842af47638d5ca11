"""The record of a decoding step in the chunks of a stream, for requests with `include_steps`."""

from __future__ import annotations

from typing import Any

from outpace.api.row_step import RowStep
from outpace.serving.http.errors import ApiError
from outpace.serving.http.logprob_formats import TokenBytes
from outpace.serving.http.schemas.steps import SteppedBody

PREDICTION = "prediction"  # named in place of the method where the caller's prediction was drafted


def check_steps(body: SteppedBody) -> None:
    """ApiError for a body that asks for steps but not for a stream."""
    if body.include_steps and not body.stream:
        raise ApiError(400, "include_steps needs stream: set it to true", param="include_steps")


def step_fields(step: RowStep, method: str, bytes_of: TokenBytes) -> dict[str, Any]:
    """The step as JSON values; `method` is that of the request."""
    return {
        "method": (PREDICTION if step.is_prediction else method) if step.draft else None,
        "draft": [
            {
                "token": bytes_of(token).decode("utf-8", "replace"),
                "parent": None if parent < 0 else parent,
            }
            for token, parent in zip(step.draft, step.parents, strict=True)
        ],
        "accepted": step.accepted,
        "tokens": step.texts,
    }
