"""A bandit: learns for each request which of several arms drafts best, from the steps in which each drafted.

An arm is one of several drafters, with or without a limit of its draft length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol

import torch

from outpace.core.context import Context
from outpace.core.contracts import Plan, Step, Want
from outpace.core.noise import Key

Reward = Literal["tokens", "speed"]
ARM = "arm"  # use of the noise keys: the choice is independent of the tokens that are drawn in the step


class Policy(Protocol):
    """Chooses among arms 0, 1, ... from the rewards of earlier rounds."""

    def probs(self) -> Sequence[float]:
        """The probability with which each arm is chosen in the next round."""
        ...

    def record(self, arm: int, reward: float | None, largest: float) -> None:
        """Add a round in which this arm was chosen. `reward` is at least 0, None if it was not measured;
        `largest`: the largest that a reward of any round so far could be."""
        ...


@dataclass(frozen=True, slots=True)
class Arm:
    """What is chosen in a step: a drafter, and how much it may draft."""

    drafter: int
    length: int | None = None  # most tokens on a path; None: as many as the drafter plans


@dataclass(slots=True)
class Request:
    """What is known of one request."""

    policy: Policy
    largest: float = 0.0  # of its rewards
    planned: int | None = None  # arm of the step in progress


class Bandit:
    """Implementation of core.contracts.Controller that chooses an arm for each row and step, by a policy of
    each request. A round is a step of a row in which it generates.

    The reward of a round is the number of accepted draft tokens ("tokens"), relative to the deepest draft
    of the request so far, or the generated tokens per second of the step ("speed"), relative to the fastest
    step of the request so far. The time is that of the whole step, with drafting, whatever the other rows of
    the batch do. A step that also reads prompts, or whose time is not positive, has no speed.
    """

    want = Want()

    def __init__(self, arms: Sequence[Arm], policy: Callable[[int], Policy], *, reward: Reward) -> None:
        """`policy` makes one for a number of arms. ValueError for fewer than two arms, and for lengths
        that are rewarded by their tokens."""
        if len(arms) < 2:
            raise ValueError("there is one arm, so nothing to choose: give two methods or lengths, or more")
        if reward == "tokens" and len({arm.length for arm in arms}) > 1:
            raise ValueError(
                "the longest draft always gives the most tokens: compare lengths by reward=speed"
            )
        self._arms, self._policy, self._by_speed = tuple(arms), policy, reward == "speed"
        self.plans_across_rows = self._by_speed  # the time of a step depends on all rows
        self._requests: dict[int, Request] = {}  # by slot

    def plan(self, ctx: Context) -> Plan:
        rows = [row for row, depth in enumerate(ctx.max_draft_depth) if depth]
        requests = [self._request(ctx.slots[row]) for row in rows]
        depth, drafter = [0] * len(ctx.slots), [0] * len(ctx.slots)
        chosen = draw_arms(ctx, rows, [request.policy.probs() for request in requests])
        for row, request, index in zip(rows, requests, chosen, strict=True):
            arm, request.planned = self._arms[index], index
            depth[row] = ctx.max_draft_depth[row] if arm.length is None else arm.length
            drafter[row] = arm.drafter
        return Plan(tuple(depth), drafter=tuple(drafter))

    def _request(self, slot: int) -> Request:
        if slot not in self._requests:
            self._requests[slot] = Request(self._policy(len(self._arms)))
        return self._requests[slot]

    def observe(self, step: Step) -> None:
        forest, seconds = step.draft.tree.forest, step_seconds(step)
        for row, slot in enumerate(step.ctx.slots):
            request = self._requests.get(slot)
            if request is None or request.planned is None:
                continue
            arm, request.planned = request.planned, None
            accepted = forest.depths[step.verdict.leaf[row]]
            if self._by_speed:
                reward = None if seconds is None else (accepted + 1) / seconds
                request.largest = max(request.largest, reward or 0.0)
            else:
                deepest = max(forest.depths[node] for node in forest.nodes[row])
                reward, request.largest = float(accepted), max(request.largest, float(deepest))
            request.policy.record(arm, reward, request.largest)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._requests.pop(slot, None)


def step_seconds(step: Step) -> float | None:
    """The time of a step without that of the session's caller; None if it also read prompts, or if the clock
    gave no positive number."""
    if step.ctx.unread is not None and any(map(len, step.ctx.unread)):
        return None
    seconds = sum(time for part, time in step.seconds.items() if part != "caller")
    return seconds if isfinite(seconds) and seconds > 0 else None


def arms_of(num_drafters: int, lengths: Sequence[int]) -> list[Arm]:
    """An arm for each drafter, or for each drafter and length. ValueError for a length below 0."""
    if any(length < 0 for length in lengths):
        raise ValueError(f"lengths are {', '.join(map(str, lengths))}; use 0 for no draft, or more")
    limits = list(dict.fromkeys(lengths)) or [None]
    return [Arm(drafter, limit) for drafter in range(num_drafters) for limit in limits]


def draw_arms(ctx: Context, rows: Sequence[int], probs: Sequence[Sequence[float]]) -> list[int]:
    """One arm for each of these rows of the batch, drawn with the probabilities `probs`, (M, number of arms).
    A row in which one arm has probability 1 uses no random number."""
    arms = [max(range(len(each)), key=each.__getitem__) for each in probs]
    open_rows = [at for at, arm in enumerate(arms) if probs[at][arm] < 1]
    if open_rows:
        zeros = [0] * len(open_rows)
        distributions = torch.tensor([list(probs[at]) for at in open_rows], dtype=torch.float64)
        key = Key([rows[at] for at in open_rows], zeros, zeros, ARM)
        for at, arm in zip(open_rows, ctx.noise.choose(distributions, key).tolist(), strict=True):
            arms[at] = arm
    return arms
