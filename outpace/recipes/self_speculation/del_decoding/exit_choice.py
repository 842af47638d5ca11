"""From which of the target's layers to draft, and how far, by how often each is accepted.

Letters: L layers, E = L - 1 early exits, C of them that are compared, n verified positions of a row, D hidden
size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy
import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Frontier, Plan, Scores, Step, Want
from outpace.cost.linear_cost import Numbers

PROMPT_POSITIONS = 8  # last positions of a part of a prompt that are looked at
KEEP = 0.95  # share of the evidence that is kept per step
# For each exit layer it is counted how many of its tokens were compared with the target's, and how many were
# the same. A new request begins with the counts of the request that ended last, scaled down so that at most
# this many tokens count as compared: then its own tokens soon outweigh them.
CARRIED = 32.0
FIRST_STEPS = 4  # steps of the first request that are compared at once


class Verified(NamedTuple):
    """Verified positions of a step of one request that are not yet compared with the exits' predictions."""

    states: Tensor  # (C, n, D) outputs of the layers before the exits that are compared
    following: Sequence[int]  # (n,) the token after each position
    logits: Tensor | None  # (n, V) the target's; None at temperature 0


class ExitRates:
    """What is known of the exits of one request."""

    def __init__(self, num_exits: int) -> None:
        self.exits: list[int] = list(range(num_exits))  # those that are compared with the next step's tokens
        self.chosen: tuple[int, int] = (1, 0)  # layers before the exit that drafts, and the length of a draft
        self.threshold = 0.0  # the confidence below which a token ends a draft
        self.num_steps = 0  # of this request and the ones before it, without those that read prompts
        self.pending: list[Verified] = []  # last steps
        self.accepted = numpy.zeros(num_exits)  # positions, each with the probability of its acceptance
        self.tested = numpy.zeros(num_exits)  # positions
        # the same, each position weighted by the exit's confidence there: [rejected, accepted]
        self._confidence = numpy.zeros((2, num_exits))
        self._unsure = numpy.zeros((2, num_exits))  # tested and accepted positions below the midpoint

    def carried(self) -> ExitRates:
        """A copy for the next request, with counts scaled down to at most CARRIED positions for each exit."""
        new = ExitRates(len(self.tested))
        share = CARRIED / numpy.maximum(self.tested, CARRIED)
        new.accepted, new.tested = self.accepted * share, self.tested * share
        new._confidence, new._unsure = self._confidence * share, self._unsure * share
        new.num_steps = self.num_steps
        new.exits, new.chosen, new.threshold = list(self.exits), self.chosen, self.threshold
        return new

    def add(self, acceptance: Numbers, confidence: Numbers, steps: int) -> None:  # (C, n), (C, n)
        """Add the verified positions of `steps` steps, as the C exits in `exits` predicted them.
        `acceptance`: probability that the exit's token is accepted. `confidence`: of its most probable
        token."""
        at, keep = self.exits, KEEP**steps
        is_low = confidence < self.midpoints()[at, None]
        both = numpy.stack([1 - acceptance, acceptance])  # (2, C, n)
        self.accepted[at] = keep * self.accepted[at] + acceptance.sum(1)
        self.tested[at] = keep * self.tested[at] + acceptance.shape[1]
        self._confidence[:, at] = keep * self._confidence[:, at] + (both * confidence).sum(2)
        low = numpy.stack([is_low, is_low * acceptance])
        self._unsure[:, at] = keep * self._unsure[:, at] + low.sum(2)

    def rates(self) -> Numbers:  # (E,)
        """How often a token of each exit is accepted."""
        return self.accepted / numpy.maximum(self.tested, 1e-9)

    def midpoints(self) -> Numbers:  # (E,)
        """Halfway between the mean confidence where an exit is accepted and where it is rejected; 0 if either
        never happened."""
        count = numpy.stack([self.tested - self.accepted, self.accepted])
        means = self._confidence / numpy.maximum(count, 1e-9)
        return numpy.where(count.min(0) > 1e-9, means.mean(0), 0.0)

    def unsure_rate(self, exit_index: int) -> float:
        """How often a token of this exit is accepted where its confidence is below the midpoint; 0 if it
        never was."""
        tested, accepted = self._unsure[:, exit_index].tolist()
        return accepted / tested if tested else 0.0


class ExitChoice:
    """Implementation of core.contracts.Controller (DEL, Entezari Zarch et al. 2025): the early exit and the
    draft length with the most expected tokens per loaded layer, v = (1 + a + ... + a^d) / (d e + L) for a
    draft of d tokens from exit e, whose tokens are accepted with frequency a.

    After each step every exit predicts the token after each verified position: those of the accepted path,
    up to the first that the draft got wrong; later ones have read tokens that were not generated. In a prompt
    it is the token that the target would generate there. At temperature 0 a position counts as accepted if
    the exit's most probable token is that one, and otherwise with the sum over the tokens of min(p, q), the
    probability that a token drawn from the exit's distribution q is accepted, where p is the target's. Both
    are taken at the request's temperature, without its other sampling parameters. The number of an exit is
    `Plan.drafter`.

    A draft ends with a token of which the exit is less confident than halfway between its mean confidences
    where it is accepted and where it is rejected, unless such tokens are accepted so often, with frequency u,
    that the next one is worth its layers: a u > e v. Exits that would have fewer
    tokens per layer than the chosen one even if all their tokens were accepted predict nothing, which saves
    time; what was known of them stays until they can be the best again. A request starts with the
    acceptance counts of the request that ended last, scaled down. With `patience` an exit is first used once
    it has been the best in many steps, for targets that are compiled again for each exit. After the first
    steps of the first request the exits predict for the positions of several steps at once, `together`: what
    they cost is mostly reading the LM head's weights.
    """

    plans_across_rows = True  # counts of ended requests, and which exits have been the best, are shared

    def __init__(
        self,
        exit_logits: Callable[[Tensor], Tensor],
        num_layers: int,
        depth: int,
        patience: int = 0,
        together: int = 1,
    ) -> None:
        """`exit_logits`: (M, D) outputs of layers -> (M, V) the logits after an exit there. `depth`: longest
        draft. `patience`: steps in which an exit must have been the best before it is used for the first
        time, and in half as many as any other; 0: it is used at once. `together`: steps after which the exits
        are compared. ValueError for a model of one layer."""
        if num_layers < 2:
            raise ValueError("a target of one layer has no early exit: use a draft model")
        self._exit_logits, self._num_layers = exit_logits, num_layers
        self.want = Want(hidden=frozenset(range(num_layers)))
        lengths, exits = numpy.arange(depth + 1.0), numpy.arange(1.0, num_layers)
        self._cost = lengths * exits[:, None] + num_layers  # (E, depth + 1) layers loaded
        self._most = ((lengths + 1) / self._cost).max(1)  # (E,) tokens per layer if all are accepted
        self._patience, self._together = patience, together
        self._best_in = numpy.zeros(num_layers - 1)  # steps in which each exit was the best
        self._usable = numpy.zeros(num_layers - 1, dtype=bool)
        self._requests: dict[int, ExitRates] = {}  # by slot
        self._last: ExitRates | None = None  # of the request that ended last
        self._thresholds: list[float] = []  # by row of the step that is planned

    def plan(self, ctx: Context) -> Plan:
        known = [self._requests.get(slot) for slot in ctx.slots]
        self._thresholds = [each.threshold if each else 0.0 for each in known]
        chosen = [self.choose(slot) for slot in ctx.slots]
        return Plan(
            tuple([depth for _, depth in chosen]),
            stop=self._ends if any(self._thresholds) else None,
            drafter=tuple([exit_layer for exit_layer, _ in chosen]),
        )

    def choose(self, slot: int) -> tuple[int, int]:
        """Exit and draft length of a request; length 0: no draft."""
        known = self._requests.get(slot)
        return known.chosen if known else (1, 0)

    def _choose(self, known: ExitRates, steps: int) -> None:
        """Choose exit, draft length and threshold from the rates, after `steps` more steps were compared."""
        rates = known.rates()
        speeds = (rates[:, None] ** numpy.arange(self._cost.shape[1])).cumsum(1) / self._cost
        exit_index, depth = divmod(int(speeds.argmax()), speeds.shape[1])
        if depth and self._patience and not self._may_use(exit_index, steps):
            speeds[~self._usable, 1:] = 0.0
            exit_index, depth = divmod(int(speeds.argmax()), speeds.shape[1])
        best = speeds[exit_index, depth]
        known.chosen = (exit_index + 1, depth)
        known.exits = numpy.flatnonzero(self._most >= best).tolist()
        goes_on = rates[exit_index] * known.unsure_rate(exit_index) > (exit_index + 1) * best
        known.threshold = 0.0 if goes_on else float(known.midpoints()[exit_index])

    def _may_use(self, exit_index: int, steps: int) -> bool:
        """Add `steps` to the number in which an exit was the best; returns whether the exit may draft."""
        self._best_in[exit_index] += steps
        often = self._best_in[exit_index] >= max(self._patience, self._best_in.max() / 2)
        self._usable[exit_index] |= often
        return bool(self._usable[exit_index])

    def _ends(self, frontier: Frontier) -> list[bool]:
        assert frontier.logits is not None
        top = frontier.logits.float().softmax(-1).amax(-1).tolist()
        return [
            confidence < self._thresholds[row] for confidence, row in zip(top, frontier.rows, strict=True)
        ]

    def observe(self, step: Step) -> None:
        forest, scores = step.draft.tree.forest, step.scores
        for row, slot in enumerate(step.ctx.slots):
            known = self._requests.get(slot)
            if known is None:
                known = self._last.carried() if self._last else ExitRates(self._num_layers - 1)
                self._requests[slot] = known
            path, following = forest.path(step.kept[row]), step.generated[row]
            temperature = step.ctx.sampling[row].temperature
            if not following:  # a part of the prompt
                layers = [*known.exits, self._num_layers - 1]
                self._compare_prompt(known, _states(scores, layers, path[-PROMPT_POSITIONS:]), temperature)
                continue
            logits = None
            if temperature:
                assert scores.logits is not None
                logits = scores.logits[path]
            known.pending.append(Verified(_states(scores, known.exits, path), following, logits))
            known.num_steps += 1
            if known.num_steps <= FIRST_STEPS or len(known.pending) == self._together:
                self._compare_pending(known, temperature)

    def _compare_prompt(self, known: ExitRates, states: Tensor, temperature: float) -> None:  # (C + 1, n, D)
        """Compare exits with what the target, the last of them, would generate after these positions of the
        prompt."""
        logits = self._logits(states)
        target = logits[-1]
        probs = (target / temperature).softmax(-1) if temperature else None
        self._add(known, logits[:-1], target.argmax(-1), probs, temperature, 1)

    def _compare_pending(self, known: ExitRates, temperature: float) -> None:
        """Compare exits with the tokens of the last steps."""
        pending, known.pending = known.pending, []
        states = torch.cat([each.states for each in pending], 1)
        following = torch.tensor([token for each in pending for token in each.following])
        targets = [each.logits for each in pending if each.logits is not None]
        probs = (torch.cat(targets).float() / temperature).softmax(-1) if targets else None
        self._add(known, self._logits(states), following, probs, temperature, len(pending))

    def _add(
        self,
        known: ExitRates,
        logits: Tensor,
        following: Tensor,
        probs: Tensor | None,
        temperature: float,
        steps: int,
    ) -> None:  # (C, n, V), (n,), (n, V)
        """Add the predictions of exits at positions of `steps` steps. `following`: the tokens there. `probs`:
        the target's distributions there, at a temperature above 0."""
        at_one = logits.softmax(-1)
        confidence, best = at_one.max(-1)  # (C, n)
        if probs is None:
            accepted = (best == following.to(best.device)).double()
        else:
            q = at_one if temperature == 1 else (logits / temperature).softmax(-1)
            accepted = torch.minimum(q, probs).sum(-1).clamp(max=1)
        known.add(accepted.cpu().numpy(), confidence.cpu().numpy(), steps)
        self._choose(known, steps)

    def _logits(self, states: Tensor) -> Tensor:  # (C, n, D) -> (C, n, V)
        """The logits if the target ended with these outputs of layers."""
        return self._exit_logits(states.flatten(0, 1)).float().view(*states.shape[:2], -1)

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._last = self._requests.pop(slot, None) or self._last


def _states(scores: Scores, layers: Sequence[int], nodes: Sequence[int]) -> Tensor:  # (C, n, D)
    """The outputs of these layers at these nodes."""
    return torch.stack([scores.hidden[layer][nodes] for layer in layers])
