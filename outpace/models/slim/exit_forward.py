"""Forwards with SpecEE's early exits: a token exits after a layer whose most probable token is the last
layer's, according to a predictor that looks at a few candidate tokens.

Letters: N tokens of all rows, k of them that a layer runs over, C candidates, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outpace.models.eager.forward import Forward
from outpace.models.forward.kv_cache import SlotCache
from outpace.models.forward.outputs import ForwardOutputs
from outpace.models.forward.request import ForwardRequest
from outpace.models.hf.logits_head import ScaledHead
from outpace.models.predictors.exits.predictor import ExitPredictor, features
from outpace.models.slim.exit_head import ExitHead
from outpace.models.slim.partial_forward import PartialForward, PartialRun

RECENT, NEIGHBOURS = 5, 2  # number of last tokens whose exits count; layers on each side of these are checked


@dataclass(frozen=True, eq=False)
class ExitRule:
    """When a token exits."""

    predictor: ExitPredictor
    threshold: float  # least predicted probability that the most probable token is the last layer's
    layers: frozenset[int] | None  # layers that are always checked, counted from 1; None: all
    head: ExitHead

    def is_checked(self, layer: int, recent: Sequence[int]) -> bool:
        """Whether a token is checked after this layer, given the exits of the last tokens."""
        if self.layers is None or layer in self.layers:
            return True
        return any(abs(layer - exit_layer) <= NEIGHBOURS for exit_layer in recent)

    def candidate_logits(self, states: Tensor, ids: Tensor) -> Tensor:  # (M, D), (M, C) -> (M, C)
        """The logits of the tokens `ids` for these outputs of a layer, from their rows of the LM head."""
        rows = self.lm_head.weight[ids]
        logits = torch.einsum("md,mcd->mc", self.head.inputs(states[None])[0], rows)
        logits = logits if self.lm_head.bias is None else logits + self.lm_head.bias[ids]
        return self.lm_head.adjusted(logits) if isinstance(self.lm_head, ScaledHead) else logits

    @property
    def lm_head(self) -> nn.Linear:
        lm_head = self.head.lm_head
        assert isinstance(lm_head, nn.Linear)
        return lm_head

    def passes(self, given: Tensor, layer: int) -> Tensor:  # (M, 3 C) -> (M,) bool
        return self.predictor.probability(given, layer) > self.threshold

    def confirmed(self, states: Tensor, ids: Tensor) -> Tensor:  # (M, D), (M, C) -> (M,) bool
        """Whether the most probable token of the vocabulary is one of the candidates."""
        best = self.head(states[None])[0].argmax(-1)
        return (best[:, None] == ids).any(-1)


class ExitForward(PartialForward):
    """Forwards of a model with early exits, over at most one token per row: which layers are checked depends
    on the exits of the preceding tokens. `candidates` is set before each forward; all layers run if it is
    None, and for prompts."""

    def __init__(self, whole: Forward, model: PreTrainedModel, rule: ExitRule) -> None:
        self.record_size = model.config.get_text_config().hidden_size
        super().__init__(whole, model)
        self.rule = rule
        self.candidates: Tensor | None = None  # (N, C); -1: none, the token runs through all layers
        self.num_checks = 0  # number of predictions made
        # token -> probabilities of its candidates at the last check
        self._probs = WeakKeyDictionary[PartialRun, dict[int, Tensor]]()

    def read(self, request: ForwardRequest, cache: SlotCache) -> ForwardOutputs:
        given = self.candidates
        if given is None or self.packs or len(request.rows) == 1:
            return super().read(request, cache)
        outputs = list[ForwardOutputs]()
        try:  # one forward for each row, with the row's candidates
            for row, own in zip(request.by_row(), given.split(1), strict=True):
                self.candidates = own
                outputs.append(super().read(row, cache))
        finally:
            self.candidates = given
        return ForwardOutputs.joined(outputs)

    def after_layer(self, run: PartialRun, layer: int, before: Tensor, after: Tensor) -> None:
        done, rule = layer + 1, self.rule
        if self.candidates is None or done == self.num_layers:
            return
        probs = self._probs.setdefault(run, {})
        for place, token in enumerate(run.running.tolist()):
            ids = self.candidates[token][None]
            row, records = run.inputs.rows[token], run.records[token]
            recent = records.depth[max(0, row.start - RECENT) : row.start].tolist()
            if int(ids[0, 0]) < 0 or not rule.is_checked(done, recent):
                continue
            states = after[place][None]
            self.num_checks += 1
            given, probs[token] = features(rule.candidate_logits(states, ids), probs.get(token))
            if not bool(rule.passes(given, done)[0]):
                continue
            self.work.head_tokens += 1
            if bool(rule.confirmed(states, ids)[0]):
                run.leave(torch.tensor([token], device=run.live.device), done, stored=False)

    def at_end(self, run: PartialRun, states: Tensor) -> Tensor:
        self._final = states
        return states

    def kept(self, run: PartialRun) -> Tensor | None:
        """The inputs of the LM head, which the draft head reads to choose candidates."""
        return self.rule.head.inputs(self._final[None])[0]
