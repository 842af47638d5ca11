"""A separate controller per row or per group of rows, for distribution tests of controllers that plan across
rows.

A plan that depends on committed tokens of other rows cannot bias a row, but the run could not be repeated in
another batch. With a controller per row, a row's plans depend on its own steps only; with a controller per
group, on the group's. For the same reason measured times are replaced by a function of the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

from outpace.core.context import Context
from outpace.core.contracts import (
    Controller,
    Found,
    Frontier,
    LookUp,
    Parts,
    PathScores,
    Plan,
    Shape,
    Step,
    Stop,
    TreeSize,
)
from outpace.drafters.compose.rows import context_of_rows, step_of_rows

# the type of Plan.choice
Choice = Callable[[Sequence[int], LookUp], Sequence[tuple[int, int]]]
TIME_PER_NODE = 0.2  # of a step, relative to a step without nodes


def controllers_by_row(
    build: Callable[[], Parts], groups: Sequence[int] | None = None
) -> Callable[[], Parts]:  # `groups[slot]`: group of a slot; None: each is a group of its own
    """`build` itself if its controller does not plan across rows; else a function that returns its parts with
    a new controller per row or group."""
    if not build().controller.plans_across_rows:
        return build
    return lambda: replace(build(), controller=ControllersApart(lambda: build().controller, groups))


def with_even_times(step: Step) -> Step:
    """The step with times that are a function of its number of nodes."""
    return replace(step, seconds={"score": 1 + TIME_PER_NODE * len(step.draft.tree)})


def looked_up_in(rows: Sequence[int], look_up: LookUp) -> list[Found]:
    """The continuations that the lookup found for these rows."""
    continuations = look_up()
    return [continuations[row] for row in rows]


class SizesApart:
    """Implementation of core.contracts.TreeSize: each of `sizes` decides for its rows."""

    def __init__(self, sizes: Sequence[tuple[TreeSize, list[int]]]) -> None:
        self._sizes = sizes

    def extend(
        self, candidates: Sequence[PathScores], newest: Sequence[PathScores], levels: int
    ) -> list[int]:
        return self._joined(
            len(candidates),
            lambda size, rows: size.extend(
                [candidates[row] for row in rows], [newest[row] for row in rows], levels
            ),
        )

    def keep(self, candidates: Sequence[PathScores], levels: int) -> list[int]:
        return self._joined(
            len(candidates), lambda size, rows: size.keep([candidates[row] for row in rows], levels)
        )

    def _joined(self, rows: int, ask: Callable[[TreeSize, list[int]], Sequence[int]]) -> list[int]:
        counts = [0] * rows
        for size, own in self._sizes:
            for row, count in zip(own, ask(size, own), strict=True):
                counts[row] = count
        return counts


class ControllersApart:
    """Implementation of core.contracts.Controller: one controller per slot, or per group of slots, created by
    `make`. ValueError if their plans differ in shape."""

    plans_across_rows = False

    def __init__(self, make: Callable[[], Controller], groups: Sequence[int] | None = None) -> None:
        self._make, self._groups, self.want = make, groups, make().want
        self._controllers: dict[int, Controller] = {}  # by group of slots

    def plan(self, ctx: Context) -> Plan:
        depths, shapes, stops = [0] * len(ctx.slots), set[Shape | None](), dict[int, tuple[Stop, int]]()
        reads, drafters = False, dict[int, int]()  # row -> number of its drafter
        choices, sizes = list[tuple[Choice, list[int]]](), list[tuple[TreeSize, list[int]]]()
        for controller, rows in self._divided(ctx.slots):
            plan = controller.plan(context_of_rows(ctx, rows))
            if plan.choice is not None:
                choices.append((plan.choice, rows))
            if plan.size is not None:
                sizes.append((plan.size, rows))
            shapes.add(plan.shape)
            reads |= plan.stop_reads
            for own, (row, depth) in enumerate(zip(rows, plan.depth, strict=True)):
                depths[row] = depth
                if plan.drafter is not None:
                    drafters[row] = plan.drafter[own]
                if plan.stop is not None:
                    stops[row] = plan.stop, own
        (shape,) = shapes  # a method has one shape

        def stop(frontier: Frontier) -> list[bool]:
            leaves, rows = dict[Stop, list[int]](), frontier.rows
            for leaf, row in enumerate(rows):
                if row in stops:
                    leaves.setdefault(stops[row][0], []).append(leaf)
            stopped = [False] * len(rows)
            for asked, own in leaves.items():
                answers = asked(frontier.only(own, [stops[rows[leaf]][1] for leaf in own]))
                for leaf, answer in zip(own, answers, strict=True):
                    stopped[leaf] = answer
            return stopped

        def choice(limits: Sequence[int], look_up: LookUp) -> list[tuple[int, int]]:
            look_up = cache(look_up)  # several controllers may call it
            chosen = [(0, 0)] * len(limits)
            for asked, rows in choices:
                own = asked([limits[row] for row in rows], partial(looked_up_in, rows, look_up))
                for row, sizes in zip(rows, own, strict=True):
                    chosen[row] = sizes
            return chosen

        return Plan(
            tuple(depths),
            shape,
            stop=stop if stops else None,
            stop_reads=reads,
            size=SizesApart(sizes) if sizes else None,
            choice=choice if choices else None,
            drafter=tuple(drafters[row] for row in range(len(depths))) if drafters else None,
        )

    def observe(self, step: Step) -> None:
        for controller, rows in self._divided(step.ctx.slots):
            controller.observe(with_even_times(step_of_rows(step, rows)))

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            group = self._group(slot)
            if group in self._controllers:
                self._controllers[group].release([slot])

    def _group(self, slot: int) -> int:
        return self._groups[slot] if self._groups else slot

    def _divided(self, slots: Sequence[int]) -> list[tuple[Controller, list[int]]]:
        """(controller, rows of the batch that it plans) of every group in `slots`."""
        rows: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            rows.setdefault(self._group(slot), []).append(row)
            if self._group(slot) not in self._controllers:
                self._controllers[self._group(slot)] = self._make()
        return [(self._controllers[group], group_rows) for group, group_rows in rows.items()]
