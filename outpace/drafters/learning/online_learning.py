"""A drafter that learns, between steps, from what the target has verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from outpace.core.claim import Claim
from outpace.core.context import Context
from outpace.core.contracts import Draft, Drafter, Plan, Step
from outpace.drafters.learning.trainer import Lesson
from outpace.drafters.learning.versions import Learnable, Versions


class Lessons(Protocol):
    """What a method notes of the texts that are decoded, by slot."""

    def note(self, step: Step, row: int) -> int:
        """Note what a step shows in a row; returns the number of positions to learn in it."""
        ...

    def take(self, slot: int) -> Lesson | None:
        """What was noted of the slot's text since this was called last; None if that is nothing to learn."""
        ...

    def forget(self, slot: int) -> None:
        """The text in this slot has ended."""
        ...


class OnlineLearning:
    """Begins an update when `requests` requests have ended, or when `positions` positions are to be learned,
    whichever comes first. While the trainer is busy with the update before it waits, and nothing more is
    noted: so the lessons in memory are bounded, and decoding never waits for a trainer in another process. It
    also waits while more than `most_rows` rows are decoded.
    """

    def __init__(
        self,
        lessons: Lessons,
        versions: Versions,
        *,
        requests: int,
        positions: int,
        most_rows: int | None = None,  # None: any number
    ) -> None:
        """ValueError unless there is at least one request and one position."""
        if requests < 1 or positions < 1:
            raise ValueError(f"requests is {requests} and positions {positions}: give at least one of both")
        self.versions, self._lessons = versions, lessons
        self._requests, self._positions, self._most_rows = requests, positions, most_rows
        self._ready: list[Lesson] = []  # of requests that have ended
        self._open: dict[int, None] = {}  # slots of requests that have not, in the order of their first steps
        self._num_ended = self._num_new = 0
        self.num_left_out = 0  # steps that were not noted, since an update was waited for

    @property
    def _is_due(self) -> bool:
        return self._num_ended >= self._requests or self._num_new >= self._positions

    def observe(self, step: Step) -> bool:
        """Note what the step shows, whose draft is verified, while the next one is not drawn. Begin an update
        if it is time; returns whether the weights have changed."""
        forest = step.draft.tree.forest
        changed, is_noted = self.versions.poll(), not self._is_due
        self.num_left_out += not is_noted
        # a session decodes in inference mode, whose tensors take no part in a backward pass
        with torch.inference_mode(False), torch.no_grad():
            for row, (slot, generated) in enumerate(zip(step.ctx.slots, step.generated, strict=True)):
                if is_noted:
                    self._open.setdefault(slot)
                    self._num_new += self._lessons.note(step, row)
                if generated:
                    leaf = step.verdict.leaf[row]
                    rejected = bool(forest.children[leaf])
                    self.versions.record(forest.depths[leaf] + rejected, forest.depths[leaf])
        for row in step.finished:
            self._end(step.ctx.slots[row])
            self._num_ended += 1
        fits = self._most_rows is None or len(step.ctx.slots) <= self._most_rows
        if fits and self._is_due and not self.versions.trainer.is_busy:
            changed |= self._update()
        return changed

    def release(self, slots: Sequence[int]) -> None:
        """The requests in these slots have ended; what they showed is learned with the next update."""
        for slot in slots:
            self._end(slot)

    def _end(self, slot: int) -> None:
        if slot in self._open:
            del self._open[slot]
            self._take(slot)
            self._lessons.forget(slot)

    @torch.inference_mode(False)
    def _take(self, slot: int) -> None:
        if lesson := self._lessons.take(slot):
            self._ready.append(lesson)

    def _update(self) -> bool:
        for slot in self._open:
            self._take(slot)
        new, self._ready, self._num_ended, self._num_new = self._ready, [], 0, 0
        return bool(new) and self.versions.update(new)


class LearningDrafter:
    """Implementation of core.contracts.Drafter: another drafter, whose weights learn in `observe`, the only
    place where they change: in a step's `observe` its draft has been verified in every row, and none is
    pending. So each draft was drawn from the distributions that it claims."""

    learns_across_rows = True

    def __init__(
        self,
        model: Learnable,
        drafter: Drafter,
        learning: OnlineLearning,
        forget: Callable[[], None] | None = None,
    ) -> None:
        """`model`: the one that drafts, and learns. `forget`: drops what `drafter` has computed with other
        weights, which then is computed anew; None: it is used on."""
        # first, since its copies say in `deepcopy`'s memo that they share their network
        self._model = model
        self.drafter, self.learning, self._forget = drafter, learning, forget
        self.want, self.drafts_across_rows = drafter.want, drafter.drafts_across_rows
        self.claims: tuple[type[Claim], ...] = drafter.claims

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        self._model.activate()
        return self.drafter.propose(ctx, plan)

    def observe(self, step: Step) -> None:
        self._model.activate()
        self.drafter.observe(step)
        if self.learning.observe(step) and self._forget is not None:
            self._forget()

    def release(self, slots: Sequence[int]) -> None:
        self.learning.release(slots)
        self.drafter.release(slots)
