"""The field of requests whose streams can report the steps of decoding."""

from __future__ import annotations

from outpace.serving.http.schemas.fields import Flag, SamplingBody


class SteppedBody(SamplingBody):
    """Base of such bodies."""

    include_steps: Flag | None = None  # extension: drafts and accepted tokens in the chunks of a stream
