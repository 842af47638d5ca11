"""Counts of drafted, accepted and generated tokens, and seconds by part, of a decoding run.

A row-step is one row of the batch in one step, except rows that only read a part of their prompt. Steps that
read a part of a prompt are counted, but not their seconds. accepted: draft tokens that were committed;
generated: accepted + 1, for the bonus token, except where a stop token or the token limit ended the text
within the accepted path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from outpace.core.contracts import Forest, Step

PARTS = ("draft", "target", "warping", "overhead")
NO_OVERHEAD = ("warp", "score", "total", "caller")  # parts of a step that are no overhead of the engine


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The part of a step that is kept for counting: no tensors, so that the step's logits can be freed."""

    forest: Forest
    leaf: tuple[int, ...]  # last accepted node of each row
    generated: tuple[int, ...]
    forwards: int
    # seconds of the step spent in forwards of draft models; of those beside the target's, the wait for them
    draft_seconds: float
    seconds: Mapping[str, float]  # empty for a step that reads a part of a prompt
    beside: bool = False  # whether draft models worked beside the target

    @property
    def drafter_seconds(self) -> float:
        """Seconds of the drafter outside draft model forwards: proposing drafts, and learning from the step's
        outcome."""
        return self.seconds.get("draft", 0.0) + self.seconds.get("observe", 0.0) - self.draft_seconds

    @staticmethod
    def of(step: Step) -> StepRecord:
        draft, reads, in_forwards = step.draft, reads_prompts(step), float(step.draft.seconds)
        waited = step.seconds.get("draft", in_forwards)
        return StepRecord(
            draft.tree.forest,
            tuple(step.verdict.leaf),
            tuple(map(len, step.generated)),
            draft.forwards,
            0.0 if reads else min(in_forwards, waited),
            {} if reads else step.seconds,
            in_forwards > waited,
        )


def reads_prompts(step: Step) -> bool:
    """Whether the target reads a part of a prompt in this step."""
    return step.ctx.unread is not None or not all(step.generated)


@dataclass(frozen=True, slots=True)
class StepCost:
    """The model forwards of one step that follow one another: enough to compute its seconds on a cost curve.
    Forwards of draft models beside the target's are left out, as if the step never waited for them."""

    rows: int
    nodes: int  # draft tree nodes of all rows, roots included
    forwards: int
    # number of nodes per tree level computed by the draft model; () if drafting was not level by level
    levels: tuple[int, ...]

    @staticmethod
    def of(record: StepRecord) -> StepCost:
        forest, forwards = record.forest, 0 if record.beside else record.forwards
        counted = Counter(forest.depths)
        depth = max(counted)
        levels = tuple(counted[level] for level in range(depth)) if depth and forwards == depth else ()
        return StepCost(forest.num_rows, len(forest), forwards, levels)


@dataclass
class Counts:
    """Sums over the steps of a run; the counts of several runs can be added."""

    steps: int = 0
    row_steps: int = 0
    draft_row_steps: int = 0  # row-steps with at least one draft token
    drafted: int = 0
    accepted: int = 0
    generated: int = 0
    forwards: int = 0  # of draft models
    timed_forwards: int = 0  # those in steps that read no prompts
    timed_steps: int = 0  # steps that read no prompts
    # position (1 = first) -> row-steps with a draft token there
    drafted_at: Counter[int] = field(default_factory=Counter)
    # position -> row-steps with a draft token there in which the position before was accepted
    offered_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    # rank among siblings (0 = first) -> accepted nodes (roots included) with a child of that rank
    offered_rank: Counter[int] = field(default_factory=Counter)
    accepted_rank: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    drafter_seconds: float = 0.0  # seconds of proposing and updating, without draft model forwards
    costs: Counter[StepCost] = field(default_factory=Counter)

    @staticmethod
    def of(records: Iterable[StepRecord]) -> Counts:
        counts = Counts()
        for record in records:
            counts.add(record)
        return counts

    def add(self, record: StepRecord) -> None:
        """Add one step."""
        forest = record.forest
        depths = forest.depths
        self.steps += 1
        self.forwards += record.forwards
        self.drafter_seconds += record.drafter_seconds
        for nodes, leaf, generated in zip(forest.nodes, record.leaf, record.generated, strict=True):
            if not generated:
                continue
            deepest = max(depths[node] for node in nodes)
            # a stop token or the token limit may end the text within the path
            accepted = min(depths[leaf], generated)
            self.row_steps += 1
            self.draft_row_steps += deepest > 0
            self.drafted += len(nodes) - 1
            self.accepted += accepted
            self.generated += generated
            for position in range(1, deepest + 1):
                self.drafted_at[position] += 1
                self.offered_at[position] += position <= accepted + 1
                self.accepted_at[position] += position <= accepted
            path = forest.path(leaf)[: accepted + 1]
            for node in path:
                self.offered_rank.update(range(len(forest.children[node])))
            for node, below in pairwise(path):
                self.accepted_rank[forest.children[node].index(below)] += 1
        self.costs[StepCost.of(record)] += 1
        seconds = record.seconds
        if seconds:
            self.timed_forwards += record.forwards
            self.timed_steps += 1
        distribution, score = seconds.get("warp", 0.0), seconds.get("score", 0.0)
        others = sum(value for name, value in seconds.items() if name not in NO_OVERHEAD)
        for part, value in zip(
            PARTS, (record.draft_seconds, score, distribution, others - record.draft_seconds), strict=True
        ):
            self.seconds[part] += value

    def within(self, seconds: float) -> Counts:
        """Set the overhead to `seconds`, the time of the steps that read no prompts, minus forwards and
        warping; returns self."""
        forwards = sum(value for part, value in self.seconds.items() if part != "overhead")
        self.seconds["overhead"] = max(0.0, seconds - forwards)
        return self

    def __add__(self, other: Counts) -> Counts:
        total = Counts()
        for name in (
            "steps",
            "row_steps",
            "draft_row_steps",
            "drafted",
            "accepted",
            "generated",
            "forwards",
            "timed_forwards",
            "timed_steps",
        ):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        for name in ("drafted_at", "offered_at", "accepted_at", "offered_rank", "accepted_rank", "costs"):
            setattr(total, name, Counter(getattr(self, name)) + getattr(other, name))
        total.drafter_seconds = self.drafter_seconds + other.drafter_seconds
        total.seconds = {part: self.seconds[part] + other.seconds[part] for part in PARTS}
        return total

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens generated per row and target forward, bonus token included; 1 for plain decoding."""
        return self.generated / max(1, self.row_steps)

    def per_step(self, seconds: float) -> float:
        """Milliseconds of a step that read no prompt, of seconds summed over these steps."""
        return 1000 * seconds / max(1, self.timed_steps)

    def rank_rates(self, *, everywhere: bool = False) -> list[float]:
        """Per candidate rank, the probability that the candidate is accepted when its parent is on the
        accepted path. Only parents with a candidate of that rank count; with `everywhere` all do, which is
        right for drafters that do not always have one."""
        reached = self.row_steps + self.accepted  # nodes of the accepted paths, roots included
        return [
            self.accepted_rank[rank] / (reached if everywhere else self.offered_rank[rank])
            for rank in sorted(self.offered_rank)
        ]

    def figures(self) -> dict[str, Any]:
        """These counts and the rates derived from them, as in the JSON report."""
        drafts, steps = self.draft_row_steps, max(1, self.steps)
        positions = sorted(self.drafted_at)
        return {
            "mean_acceptance_length": self.mean_acceptance_length,
            "mean_acceptance_length_of_drafting_steps": 1 + self.accepted / drafts if drafts else 1.0,
            "acceptance_rate": self.accepted / self.drafted if self.drafted else None,
            "acceptance_by_position": [self.accepted_at[position] / drafts for position in positions],
            "acceptance_by_position_conditional": [
                self.accepted_at[position] / self.offered_at[position] if self.offered_at[position] else None
                for position in positions
            ],
            "acceptance_by_rank": self.rank_rates(),
            "drafted_per_step": self.drafted / max(1, self.row_steps),
            "draft_forwards_per_step": self.forwards / steps,
            "milliseconds_per_step": {part: self.per_step(value) for part, value in self.seconds.items()},
            "drafter_milliseconds_per_step": self.per_step(self.drafter_seconds),
            "steps": self.steps,
            "row_steps": self.row_steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "generated": self.generated,
        }


def repetition(tokens: Sequence[int], size: int = 4) -> float:
    """Share of the n-grams of `size` tokens that occurred earlier in the same text; 0 for a shorter text."""
    grams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token that differs, the shorter length if one text is a prefix of the other, None if
    they are equal."""
    for position, (token, other) in enumerate(zip(tokens, reference, strict=False)):
        if token != other:
            return position
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))
