"""A request to the engine, and the events by which its output is returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.api.row_output import Piece, Result
from outpace.api.settings import Settings


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate."""

    prompt: Sequence[int]  # token ids
    settings: Settings
    max_new_tokens: int  # what the model's maximum length leaves; the settings' max_tokens applies too
    seed: int
    num_top: int | None = None  # number of most probable tokens per Logprob; None: no log probabilities
    prediction: Sequence[int] = ()  # token ids of the predicted output
    method: str | None = None  # name of one of the engine's methods; None: its first
    max_draft_depth: int | None = None  # 0: no speculation; None: as deep as the method drafts
    include_steps: bool = False  # pieces have the records of their steps
    num_prompt_top: int | None = None  # as num_top, for the tokens of the prompt
    generates: bool = True  # False: only the prompt is read


@dataclass(frozen=True, slots=True)
class Finished:
    """The request has ended."""

    result: Result  # finish_reason None: it was cancelled


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot be completed."""

    reason: str  # one sentence for the client
    result: Result | None  # the output up to the failure; None: the request had not begun
    is_fault_of_server: bool


Event = Piece | Finished | Failed
