"""Answers to a problem by a majority vote of several samples, up to a deadline (Wang et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from outpace.api.call import prepare
from outpace.api.majority_vote import NUMBER, Tally, answer_in, answer_pattern
from outpace.api.prompts import Prompt
from outpace.api.row_output import Piece, Result
from outpace.core.contracts import Recipe
from outpace.core.sampling_params import whole_number

METHOD = "latency-aware-tts"
SAMPLES = 8
TAKEN = ("n", "batch", "on_piece")  # parameters of `generate` that a vote sets

Stopped = Literal["complete", "decided", "deadline"]


@dataclass(frozen=True, slots=True)
class Branch:
    """One sample of the problem."""

    result: Result  # what was generated until the vote ended
    answer: str | None  # its vote; None: it gave no answer, or had not finished when the vote ended
    seconds: float | None  # from the beginning of the vote to its last token; None: it had not finished


@dataclass(frozen=True, slots=True)
class Vote:
    """The result of a vote."""

    answer: str | None  # None: no branch gave an answer in time
    votes: dict[str, int]  # answer -> number of votes, the chosen answer first
    branches: list[Branch]  # in the order of their numbers; those that had not begun are missing
    stopped: Stopped  # all branches finished, the others could not change the answer, or the deadline passed
    seconds: float  # until the vote ended, without loading models
    num_steps: int

    def as_dict(self, tokenizer: Any = None) -> dict[str, Any]:
        """All fields as JSON values."""
        branches = [
            {"answer": each.answer, "seconds": each.seconds, **each.result.as_dict(tokenizer)}
            for each in self.branches
        ]
        return {
            "answer": self.answer,
            "votes": self.votes,
            "stopped": self.stopped,
            "seconds": self.seconds,
            "num_steps": self.num_steps,
            "branches": branches,
        }


def vote(
    target: Any,
    prompt: Prompt,
    method: str | Path | Recipe | None = None,
    *,
    samples: int = SAMPLES,
    answer: str = NUMBER,
    deadline: float | None = None,
    temperature: float = 1.0,
    clock: Callable[[], float] = perf_counter,
    on_piece: Callable[[Piece], None] | None = None,
    **given: Any,
) -> Vote:
    """Decode several samples of one problem together and return the answer that most of them give.

    The samples have different seeds, so they are independent, and each has the target's distribution; they
    share the KV entries of the prompt. A sample votes when its text ends, at a stop or after max_tokens. Of
    answers with as many votes, the one whose first vote came earliest is chosen; of samples that end in the
    same step, the one with the lower number comes first. The vote ends when all samples have ended, when the
    others could not change the answer, or with the first step that ends after the deadline, whose samples do
    not vote. A step is not interrupted.

    Args:
        target: as in `outpace.generate`.
        prompt: a text, a list of token ids or a list of chat messages.
        method: as in `outpace.generate`. Default: latency-aware-tts.
        samples: number of samples.
        answer: regular expression; the answer is the last match in a sample's text, or of its first group.
            Default: a number.
        deadline: seconds from the beginning of decoding, the prompt included; None: no deadline.
        temperature: of the samples, above 0 for more than one.
        clock: returns seconds. If it goes backwards, no time has passed.
        on_piece: as in `outpace.generate`.
        **given: further arguments of `outpace.generate`, such as max_tokens or seed, and the method's
            options.

    Raises ValueError for invalid values.
    """
    pattern = answer_pattern(answer)
    if whole_number("samples", samples) < 1:
        raise ValueError(f"samples is {samples}; use at least 1")
    if deadline is not None and not (isinstance(deadline, Real) and deadline > 0):
        raise ValueError(f"the deadline is {deadline!r}; use a positive number of seconds")
    if taken := [name for name in TAKEN if name in given]:
        raise ValueError(f"a vote decides about {taken[0]} itself: use samples")
    call = prepare(
        target,
        prompt,
        METHOD if method is None else method,
        n=samples,
        batch=samples,
        temperature=temperature,
        on_piece=on_piece,
        **given,
    )
    if len(call.prompts) != samples:
        raise ValueError("a vote is about one prompt: call it once for each")
    if call.model.tokenizer is None:
        raise ValueError("answers are found in text, which needs a tokenizer: pass tokenizer=...")
    decoding, tally = call.decode(share_prompt=True), Tally(samples)
    ended: dict[int, tuple[float, str | None]] = {}  # row -> seconds, answer
    stopped: Stopped = "complete"
    num_steps, began, seconds = 0, clock(), 0.0
    with closing(decoding.steps()) as steps:
        for pieces in steps:
            rows = [piece.row for piece in pieces]
            num_steps += 1
            seconds = max(seconds, clock() - began)
            if deadline is not None and seconds > deadline:
                stopped = "deadline"
                break
            for row in rows:
                result = decoding.result(row)
                if result.finish_reason is not None:
                    ended[row] = seconds, answer_in(result.text, pattern)
                    tally.add(ended[row][1])
            if tally.decided:
                stopped = "complete" if len(ended) == samples else "decided"
                break
    branches = [
        Branch(
            decoding.result(row),
            ended[row][1] if row in ended else None,
            ended[row][0] if row in ended else None,
        )
        for row in range(decoding.begun)
    ]
    return Vote(tally.leader, tally.votes, branches, stopped, seconds, num_steps)
