"""Test of reused slots: requests must get the same drafts and texts there as in a new session.

A distribution test decodes each batch in a new session, and so cannot detect a part that keeps the state of
ended requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from outpace.core.contracts import Parts, Step
from outpace.core.sampling_params import SamplingParams
from outpace.engine.engine import Engine

EARLIER = ((1, 0, 0, 2, 1, 0, 0), (2, 1, 2, 1), (0, 2, 1, 1, 0, 2))
LATER = ((2, 0, 1, 2, 0), (1, 1, 1, 1, 1, 1, 1, 1), (0, 1))
CANCELLED = 1  # the slot whose first request is cancelled
# texts and, per slot, the draft tokens of each step
Decoded = tuple[list[list[int]], list[list[list[int]]]]


def fault_in_used_slots(build: Callable[[], Parts]) -> str:
    """What differs for requests in reused slots from a new session, as a message; "" if nothing.

    Greedy texts are always compared; drafts, and texts sampled with the same seed, if they must depend on the
    request alone."""
    used, fresh = build(), build()
    across = used.drafter.learns_across_rows or used.drafter.drafts_across_rows
    by_request = not (across or used.controller.plans_across_rows)
    for temperature in (1.0, 0.0):
        params = SamplingParams(temperature, max_tokens=8)
        _decoded(used, EARLIER, params, cancels=True)
        (texts, drafts), (new_texts, new_drafts) = (_decoded(parts, LATER, params) for parts in (used, fresh))
        if (by_request or not temperature) and (texts != new_texts or (by_request and drafts != new_drafts)):
            return (
                "a request gets other drafts or tokens in the slot of one that has ended than in a new "
                "session: forget the state of `slots` in `release`, or set learns_across_rows or "
                "plans_across_rows"
            )
    return ""


def _decoded(
    parts: Parts, prompts: Sequence[Sequence[int]], params: SamplingParams, *, cancels: bool = False
) -> Decoded:
    sampling = [replace(params, seed=seed) for seed in range(len(prompts))]
    engine = Engine.of(parts, [torch.tensor(prompt) for prompt in prompts], sampling)
    drafts = [list[list[int]]() for _ in prompts]
    for number, step in enumerate(engine.steps()):
        _note(step, drafts)
        if cancels and number == 1 and CANCELLED in engine.session.rows:
            engine.cancel(CANCELLED)
    return [engine.output(slot) for slot in range(len(prompts))], drafts


def _note(step: Step, drafts: Sequence[list[list[int]]]) -> None:
    tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
    for slot, nodes in zip(step.ctx.slots, forest.nodes, strict=True):
        drafts[slot].append([tokens[node] for node in nodes])
