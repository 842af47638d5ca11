"""Chains of models in which each drafts for the one before it: time per token, and whether another model in
the chain pays (Wang et al. 2025, arXiv:2510.26527)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A model of the chain that verifies."""

    seconds: float  # of a forward, over as many tokens as it verifies
    tokens: float  # of the output, per forward; tokens that the models above reject do not count


@dataclass(frozen=True, slots=True)
class Chain:
    """The target, the models between, and the model that drafts first and verifies nothing."""

    stages: tuple[Stage, ...]  # the target first
    drafter: float  # seconds of a forward of the model that drafts first
    forwards: float  # of it, per forward of the last stage

    @property
    def seconds_per_token(self) -> float:
        """Of the output."""
        verified = sum(each.seconds / each.tokens for each in self.stages)
        return verified + self.forwards * self.drafter / self.stages[-1].tokens


def pays(now: Chain, after: Chain) -> bool:
    """Whether the chain is faster with the model that `after` has and `now` has not.

    The paper's condition on a new model after the target of `now` is the same where forwards take the same
    time and number before and after: new.seconds / new.tokens + forwards * drafter * (1 / new.tokens - 1 /
    target.tokens) < target.seconds * (1 / target.tokens - 1 / tokens of the target's forward after)."""
    return after.seconds_per_token < now.seconds_per_token
