"""DEL: rows that draft from different exits, in one batch."""

from __future__ import annotations

import pytest
import torch

from outpace.core.contracts import Plan
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.table import TableTarget
from outpace.proof.enumeration import Case, enumerate_distributions, largest_error
from outpace.proof.reference import table_logits
from outpace.recipes.self_speculation.del_decoding.recipe import del_decoding
from outpace.sampling.target_probs import LazyTargetProbs

TARGET = TableTarget(3, seed=1)
PROMPTS = ([0, 1, 2], [2, 2], [1, 0])


class Turns:
    """A controller under which the exit changes with the length of the text, and from row to row."""

    plans_across_rows = False

    def __init__(self, inner) -> None:
        self.want = inner.want

    def plan(self, ctx) -> Plan:
        exits = [1 + (length + row) % 3 for row, length in enumerate(ctx.committed)]
        return Plan(tuple([2 * (each != 3) for each in exits]), drafter=tuple(exits))

    def observe(self, step) -> None:
        pass

    def release(self, slots) -> None:
        pass


def parts():
    made = del_decoding.build(TARGET)
    object.__setattr__(made, "controller", Turns(made.controller))
    return made


@pytest.mark.slow
def test_exits_that_change_every_step_are_exact() -> None:
    cases = [Case(tuple(text), SamplingParams(1.0, max_tokens=4)) for text in PROMPTS]
    found = enumerate_distributions(parts, cases, batch=1)
    assert largest_error(found, table_logits(TARGET.logits, TARGET.state), cases) < 1e-12
    assert found.counts.accepted and found.counts.deepest == 2


def test_rows_of_one_batch_draft_from_different_exits() -> None:
    made, sampling = parts(), [SamplingParams(max_tokens=30)] * 3
    seen = set()
    for step in Session(made, [torch.tensor(text) for text in PROMPTS], sampling, LazyTargetProbs).steps():
        seen.add(tuple(len(nodes) for nodes in step.draft.tree.forest.nodes))
        for row, tokens in enumerate(step.generated):
            text = step.ctx.tokens[row].tolist()
            for token in tokens:
                assert token == int(TARGET.logits[TARGET.state(text)].argmax())
                text.append(token)
    assert any({1, 3} <= set(sizes) for sizes in seen)  # beside one another
    assert set(made.drafter._drafters) == {1, 2}
