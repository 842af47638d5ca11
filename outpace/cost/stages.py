"""Chains of models in which each drafts for the one before it: time per token, and whether another model in
the chain pays (Wang et al. 2025, arXiv:2510.26527)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A model of the chain."""

    seconds: float  # of a forward
    tokens: float  # of the output, per forward; tokens that the models above reject do not count


def seconds_per_token(stages: tuple[Stage, ...], drafter: float, forwards: float) -> float:
    """Seconds per token of the output of a chain, the target first. `drafter`: seconds of a forward of the
    model that drafts first and verifies nothing; `forwards`: of it, per forward of the last stage."""
    return sum(each.seconds / each.tokens for each in stages) + forwards * drafter / stages[-1].tokens


def pays(
    new: Stage, target: Stage, tokens_after: float, drafter: float, forwards: float, forwards_after: float
) -> bool:
    """Whether a new stage between the target and its drafter saves time. `target`: as it is now;
    `tokens_after`: of the output per forward of the target with the new stage; `drafter`: seconds of its
    forward; `forwards` and `forwards_after`: how many of them a forward of its verifier takes, now and with
    the new stage.

    With equal numbers this is the paper's condition: new.seconds / new.tokens + forwards * drafter * (1 /
    new.tokens - 1 / target.tokens) < target.seconds * (1 / target.tokens - 1 / tokens_after)."""
    now = seconds_per_token((target,), drafter, forwards)
    after = seconds_per_token((Stage(target.seconds, tokens_after), new), drafter, forwards_after)
    return after < now
