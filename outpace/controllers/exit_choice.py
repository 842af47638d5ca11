"""From which of the target's layers to draft, and how far, by how often each predicts the target's token.

Letters: L layers, E = L - 1 early exits, C of them that are compared, n verified positions of a row, D hidden
size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
import torch
from torch import Tensor

from outpace.controllers.linear_cost import Numbers
from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Step, Want

PROMPT_POSITIONS = 32  # last positions of a part of a prompt that are looked at
KEEP = 0.95  # share of the evidence that is kept per step


class ExitRates:
    """What is known of the exits of one request."""

    def __init__(self, num_exits: int) -> None:
        self.exits: list[int] = list(range(num_exits))  # those that are compared with the next step's tokens
        self.chosen: tuple[int, int] = (1, 0)  # layers before the exit that drafts, and the length of a draft
        self.matched = numpy.zeros(num_exits)  # positions at which the exit predicted the target's token
        self.tested = numpy.zeros(num_exits)  # positions
        # sum and number of the confidences of predictions, by whether they were right: [wrong, right]
        self._confidence = numpy.zeros((2, num_exits))
        self._count = numpy.zeros((2, num_exits))

    def add(self, right: Numbers, confidence: Numbers) -> None:  # (C, n) bool, (C, n)
        """Add the verified positions of a step, as the C exits in `exits` predicted them."""
        at = self.exits
        self.matched[at] = KEEP * self.matched[at] + right.sum(1)
        self.tested[at] = KEEP * self.tested[at] + right.shape[1]
        for kind, chosen in enumerate((numpy.logical_not(right), right)):
            self._confidence[kind, at] = KEEP * self._confidence[kind, at] + (confidence * chosen).sum(1)
            self._count[kind, at] = KEEP * self._count[kind, at] + chosen.sum(1)

    def rates(self) -> Numbers:  # (E,)
        """How often each exit predicted the target's token."""
        return self.matched / numpy.maximum(self.tested, 1e-9)

    def threshold(self, exit_layer: int) -> float:
        """The confidence between those of right and of wrong predictions of an exit; 0 if one is unknown."""
        at = exit_layer - 1
        if min(self._count[:, at]) <= 0:
            return 0.0
        return float((self._confidence[:, at] / self._count[:, at]).mean())


class ExitChoice:
    """Implementation of core.contracts.Controller (DEL, Entezari Zarch et al. 2025): the early exit and the
    draft length with the most expected tokens per loaded layer, (1 + a + ... + a^d) / (d e + L) for a draft
    of d tokens from exit e, whose predictions were the target's token with frequency a.

    After each step every exit predicts the token after each verified position: those of the accepted path,
    up to the first that the draft got wrong; later ones have read tokens that were not generated. The
    number of an exit is `Plan.drafter`. A draft ends with a token of which the exit is less confident than
    halfway between the predictions that were right and those that were wrong. Exits that would have fewer
    tokens per layer than the chosen one even if all their tokens were accepted predict nothing, which saves
    time; what was known of them stays until they can be the best again.
    """

    plans_across_rows = False

    def __init__(self, exit_logits: Callable[[Tensor], Tensor], num_layers: int, depth: int) -> None:
        """`exit_logits`: (M, D) outputs of layers -> (M, V) the logits after an exit there. `depth`: longest
        draft. ValueError for a model of one layer."""
        if num_layers < 2:
            raise ValueError("a target of one layer has no early exit: use a draft model")
        self._exit_logits, self._num_layers = exit_logits, num_layers
        self._layers = range(num_layers - 1)
        self.want = Want(hidden=frozenset(self._layers))
        lengths, exits = numpy.arange(depth + 1.0), numpy.arange(1.0, num_layers)
        self._cost = lengths * exits[:, None] + num_layers  # (E, depth + 1) layers loaded
        self._most = ((lengths + 1) / self._cost).max(1)  # (E,) tokens per layer if all are accepted
        self._requests: dict[int, ExitRates] = {}  # by slot
        self._thresholds: list[float] = []  # by row of the step that is planned

    def plan(self, ctx: Context) -> Plan:
        chosen = [self.choose(slot) for slot in ctx.slots]
        self._thresholds = [
            self._requests[slot].threshold(exit_layer) if slot in self._requests else 0.0
            for slot, (exit_layer, _) in zip(ctx.slots, chosen, strict=True)
        ]
        return Plan(
            tuple([depth for _, depth in chosen]),
            stop=self._ends,
            drafter=tuple([exit_layer for exit_layer, _ in chosen]),
        )

    def choose(self, slot: int) -> tuple[int, int]:
        """Exit and draft length of a request; length 0: no draft."""
        known = self._requests.get(slot)
        return known.chosen if known else (1, 0)

    def _add(self, known: ExitRates, right: Numbers, confidence: Numbers) -> None:  # (C, n) bool, (C, n)
        """Add the verified positions of a step, and choose anew."""
        known.add(right, confidence)
        tokens = (known.rates()[:, None] ** numpy.arange(self._cost.shape[1])).cumsum(1)
        speeds = tokens / self._cost
        exit_index, depth = divmod(int(speeds.argmax()), speeds.shape[1])
        known.chosen = (exit_index + 1, depth)
        known.exits = numpy.flatnonzero(self._most >= speeds[exit_index, depth]).tolist()

    def _ends(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None
        top = frontier.logits.float().softmax(-1).amax(-1).tolist()
        return [
            confidence < self._thresholds[row] for confidence, row in zip(top, frontier.rows, strict=True)
        ]

    def observe(self, step: Step) -> None:
        forest, hidden = step.draft.tree.forest, step.scores.hidden
        tokens = step.draft.tree.tokens
        for row, slot in enumerate(step.ctx.slots):
            path, generated = forest.path(step.kept[row]), step.generated[row]
            if not generated:  # a part of the prompt
                generated = [*tokens[path[1:]].tolist(), step.verdict.bonus[row]]
                path, generated = path[-PROMPT_POSITIONS:], generated[-PROMPT_POSITIONS:]
            known = self._requests.setdefault(slot, ExitRates(len(self._layers)))
            states = torch.stack([hidden[layer][path] for layer in known.exits])  # (C, n, D)
            self._add(known, *self._predicted(states, generated))

    def _predicted(self, states: Tensor, following: Sequence[int]) -> tuple[Numbers, Numbers]:
        """Whether each exit predicts the token after each position (C, n), and how confident it is."""
        logits = self._exit_logits(states.flatten(0, 1)).float()
        confidence, tokens = logits.softmax(-1).max(-1)
        shape = states.shape[:2]
        right = tokens.view(shape).cpu().numpy() == numpy.array(following)
        return right, confidence.view(shape).cpu().numpy()

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._requests.pop(slot, None)
