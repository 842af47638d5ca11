"""DEL on the package's model with trained exits: its rates are what a reader of the texts would count, and it
loads about as few layers per token as the best fixed exit and draft length.

What a fixed exit would have loaded follows from one forward over the text: in greedy decoding a draft is
accepted as far as the exit's most probable tokens are those of the text.

Letters: L layers, E = L - 1 exits, T tokens of a text.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import outpace
from outpace.api.model import Model
from outpace.api.prompts import encode
from outpace.core.sampling_params import SamplingParams
from outpace.cost.linear_cost import Numbers
from outpace.decode import Session
from outpace.models.slim.make import exit_logits
from outpace.recipes.self_speculation.del_decoding import exit_choice
from outpace.recipes.self_speculation.del_decoding.exit_choice import PROMPT_POSITIONS, ExitChoice
from outpace.recipes.self_speculation.del_decoding.recipe import del_decoding
from outpace.sampling.target_probs import LazyTargetProbs
from zoo_training import tasks
from zoo_training.corpus import read_corpus

pytestmark = pytest.mark.slow
KINDS, PROMPTS, TOKENS, LONGEST = ("code", "arithmetic", "edit", "chat"), 2, 160, 8


@cache
def model() -> Model:
    return outpace.load("zoo:layerskip", dtype="float32")


def prompts(kind: str) -> list[list[int]]:
    if kind == "code":
        texts: list[Any] = [document[:300] for document in read_corpus().held_out[:PROMPTS]]
    else:
        texts = [task.messages for task in tasks.held_out(kind, PROMPTS)]
    return [encode(model().tokenizer, text, model().target.vocab) for text in texts]


class Decoded:
    """A greedy text with what DEL chose and knew."""

    rates: Numbers  # (E,) before the last step
    tested: Numbers  # (E,)
    pending: int  # verified positions before the last step that were not compared yet

    def __init__(self, prompt: list[int]) -> None:
        parts, self.first = del_decoding.build(model().target), len(prompt)
        controller = parts.controller
        assert isinstance(controller, ExitChoice)
        choose, self.choices = controller.choose, list[tuple[int, int]]()

        def recorded(slot: int) -> tuple[int, int]:
            self.choices.append(choose(slot))
            known = controller._requests.get(slot)
            if known is not None:
                self.rates, self.tested = known.rates(), known.tested.copy()
                self.pending = sum(len(each.following) for each in known.pending)
            return self.choices[-1]

        controller.choose = recorded
        params = SamplingParams(max_tokens=TOKENS)
        session = Session(parts, [torch.tensor(prompt)], [params], LazyTargetProbs)
        self.layers, num_layers = 0, model().target.num_layers  # loaded
        for step in session.steps():
            if step.generated[0]:
                drafted = len(step.draft.tree) - 1
                self.last = len(step.generated[0])  # tokens of the last step
                self.layers += num_layers + drafted * self.choices[-1][0]
        self.text = session.request(0).text().tolist()

    @property
    def num_tokens(self) -> int:
        return len(self.text) - self.first

    def right(self) -> Tensor:  # (E, T - 1) bool
        """Whether the most probable token of each exit is that of the target, which generated the text."""
        target = model().target
        with torch.no_grad():
            found = target.model(torch.tensor([self.text]), output_hidden_states=True)
            states, last = found.hidden_states, found.logits[0, :-1].argmax(-1)
            logits = exit_logits(target)
            best = [logits(states[layers][0]).argmax(-1) for layers in range(1, target.num_layers)]
        assert last[self.first - 1 :].tolist() == self.text[self.first :]
        return torch.stack(best)[:, :-1] == last


def layers_loaded(right: list[bool], first: int, exit_layer: int, depth: int) -> int:
    """By a fixed exit and draft length, for a text whose first token was generated at index `first`."""
    position, loaded = first - 1, 0  # of the last token that was generated
    while position < len(right):
        drafted = min(depth, len(right) - position - 1)
        accepted = 0
        while accepted < drafted and right[position + accepted]:
            accepted += 1
        loaded += drafted * exit_layer + model().target.num_layers
        position += accepted + 1
    return loaded


@cache
def decoded(kind: str) -> list[Decoded]:
    return [Decoded(prompt) for prompt in prompts(kind)]


def test_rates_are_how_often_an_exit_predicts_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_choice, "KEEP", 1.0)  # nothing is forgotten
    for kind in ("code", "edit"):
        found = Decoded(prompts(kind)[0])
        # the last positions of the prompt but one, which the first step reads, to those before the last step
        begin = max(0, found.first - 1 - PROMPT_POSITIONS)
        right = found.right()[:, begin : len(found.text) - 1 - found.last - found.pending]
        assert right.shape[1] > TOKENS // 2
        always = found.tested == right.shape[1]  # exits that could be the best at any time
        assert always.sum() >= 3
        rates = right.double().mean(1)[torch.from_numpy(always)].tolist()
        assert rates == pytest.approx(found.rates[always].tolist(), abs=1e-9)


def test_it_loads_about_as_few_layers_as_the_best_fixed_exit_in_hindsight() -> None:
    fixed: Counter[tuple[int, int]] = Counter()
    loaded = tokens = 0
    for kind in KINDS:
        for text in decoded(kind):
            loaded += text.layers
            tokens += text.num_tokens
            for exit_index, right in enumerate(text.right().tolist()):
                for depth in range(LONGEST + 1):
                    layers = layers_loaded(right, text.first, exit_index + 1, depth)
                    fixed[exit_index + 1, depth] += layers
    plain = tokens * model().target.num_layers
    assert fixed[1, 0] == plain
    best = min(fixed.values())
    assert best < 0.8 * plain
    assert loaded < 1.05 * best


def test_choices_differ_between_kinds_of_text() -> None:
    chosen = {kind: Counter(choice for text in decoded(kind) for choice in text.choices) for kind in KINDS}

    def distance(one: str, other: str) -> float:
        """Between the shares of choices of two kinds: from 0, the same, to 2."""
        ours, theirs = chosen[one], chosen[other]
        return sum(abs(ours[each] / ours.total() - theirs[each] / theirs.total()) for each in ours | theirs)

    assert max(distance("code", "edit"), distance("arithmetic", "edit"), distance("code", "arithmetic")) > 0.5
