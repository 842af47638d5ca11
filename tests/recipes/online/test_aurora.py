"""What aurora learns: the target's distributions on accepted paths and rejected branches."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from outpace.core.claim import Drawn
from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.drafters.learning.target_labels import DIVERGENCES
from outpace.drafters.learning.verified_trees import Objective, TreeNotes, VerifiedTrees
from outpace.models.heads.draft_head import head_config, untrained
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.learning_head import LearningHead
from outpace.models.hf.target import HFTarget
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import transformers_models
from outpace.recipes.online.aurora import aurora
from outpace.sampling.warp import warp

PROMPTS = [(0, 1), (3,), (1, 3, 3), (1, 0), (3, 1, 0), (0, 0), (1, 1), (3, 3), (0, 1, 0)]
OBJECTIVE = Objective(DIVERGENCES["reverse_kl"], 0.3, 0.1)


@cache
def target() -> HFTarget:
    made = transformers_models().target
    assert isinstance(made, HFTarget)
    return made


def taught(
    notes: type[TreeNotes], opened: HeadModel | None = None, top_p: float = 1.0, stop: tuple[int, ...] = ()
) -> tuple[list[VerifiedTrees], list[Step], list[list[int]]]:
    """The lessons of some texts, the steps in which they were decoded, and the texts."""
    parts, steps = aurora.build(target(), head=opened, depth=3, requests=99), list[Step]()
    drafter = parts.drafter
    assert isinstance(drafter, LearningDrafter) and isinstance(drafter._model, LearningHead)
    drafter.learning._lessons = notes(drafter._model, OBJECTIVE)
    params = [
        SamplingParams(1.0, max_tokens=16, seed=seed, top_p=top_p, stop=stop if seed > 1 else ())
        for seed, _ in enumerate(PROMPTS)
    ]
    outputs = texts(parts, PROMPTS, params, observe=steps.append)
    found = [lesson for lesson in drafter.learning._ready if isinstance(lesson, VerifiedTrees)]
    whole = [[*prompt, *output] for prompt, output in zip(PROMPTS, outputs, strict=True)]
    return found, steps, whole


def places(lesson: VerifiedTrees) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """For each node the committed text up to its root, and the draft tokens after that."""
    found = list[tuple[tuple[int, ...], tuple[int, ...]]]()
    for node in lesson.nodes:
        if node.depth:
            text, drafted = found[node.above]
            found.append((text, (*drafted, node.token)))
        else:
            found.append((tuple(lesson.tokens[: node.above + 2].tolist()), ()))
    return found


class BeyondTheEnd(TreeNotes):
    """Wrong: also learns draft nodes after the end of the text."""

    def drafted(self, step: Step, row: int, path: Sequence[int]) -> Sequence[int]:
        return step.draft.tree.forest.nodes[row][1:]


class AfterTopP(TreeNotes):
    """Wrong: learns the distribution that tokens are drawn from."""

    def label(self, step: Step, row: int, logits: Tensor) -> Tensor:
        return warp(logits[None].clone(), [step.ctx.sampling[row]])[0].log()


def faults(notes: type[TreeNotes]) -> set[str]:
    """What is wrong with the lessons of some texts, found from the steps and the texts."""
    lessons, _, whole = taught(notes, top_p=0.7, stop=(2,))
    wrong, known = set[str](), 0
    assert len(lessons) == len(PROMPTS) and any(text[-1] == 2 for text in whole)
    for lesson in lessons:
        (text,) = [each for each in whole if each[:-1] == lesson.tokens.tolist()]
        for node, (before, drafted) in zip(lesson.nodes, places(lesson), strict=True):
            read = [*before, *drafted]
            if read == text:
                wrong.add("beyond the end")
                continue
            assert node.accepted == (read == text[: len(read)]) and before == tuple(text[: len(before)])
            assert node.following == (text[len(read)] if node.accepted else -1)
            with torch.no_grad():
                p = target().model(torch.tensor([read])).logits[0, -1].log_softmax(-1)
            if not torch.allclose(lesson.log_p[node.label], p):
                wrong.add("labels")
            known += node.accepted and node.depth > 0
        depths = [node.depth for node in lesson.nodes]
        assert depths == sorted(depths)
        prompt = PROMPTS[whole.index(text)]
        assert depths.count(0) == len(text) - max(2, len(prompt))
        if not lesson.loss(tuple(lesson.network.own.values())).isfinite():
            wrong.add("loss")
    assert known > 2
    return wrong


@pytest.mark.slow
def test_all_verified_nodes_are_learned_up_to_the_end_of_a_text() -> None:
    assert faults(TreeNotes) == set()
    assert "beyond the end" in faults(BeyondTheEnd)
    assert faults(AfterTopP) == {"labels", "loss"}


def head_with(ids: Sequence[int]) -> HeadModel:
    """An untrained head that drafts these tokens only."""
    config = head_config(target(), len(ids))
    head = Eagle3Head(config, target().embed, (0, 1), draft_ids=torch.tensor(ids))
    return HeadModel(untrained(head, target(), 1, (head.fc, head.layers, head.lm_head)))


@pytest.mark.parametrize("kind", ["eagle3", "eagle3 with fewer tokens", "eagle"])
def test_the_pass_over_trees_gives_the_distributions_that_tokens_were_drawn_from(kind: str) -> None:
    ids = [3, 0, 1] if "fewer" in kind else None
    given = HeadModel(untrained_eagle(target(), 1)) if kind == "eagle" else None
    lessons, steps, _ = taught(TreeNotes, given if ids is None else head_with(ids))
    learned: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
    for lesson in lessons:
        logits = lesson.network.run(tuple(lesson.network.own.values()), lesson._logits)
        learned |= zip(places(lesson), logits.softmax(-1), strict=True)
    compared = 0
    for step in steps:
        forest, tokens, claim = step.draft.tree.forest, step.draft.tree.token_list(), step.draft.tree.claim
        if not isinstance(claim, Drawn):
            continue
        for node in range(forest.num_rows, len(forest)):
            above = [tokens[each] for each in forest.path(forest.parents[node])[1:]]
            key = tuple(step.ctx.tokens[forest.rows[node]].tolist()), tuple(above)
            if key in learned:
                q = claim.q[claim.row[node]]
                torch.testing.assert_close(learned[key], q if ids is None else q[ids])
                compared += 1
    assert compared > 30


def test_the_loss_has_three_terms_of_positions_that_can_be_drafted() -> None:
    ids = [3, 0, 1]
    lessons, _, _ = taught(TreeNotes, head_with(ids))
    for lesson in lessons:
        logits = lesson.network.run(tuple(lesson.network.own.values()), lesson._logits)
        total = 0.0
        for node, (text, drafted), log_q in zip(
            lesson.nodes, places(lesson), logits.log_softmax(-1), strict=True
        ):
            with torch.no_grad():
                p = target().model(torch.tensor([[*text, *drafted]])).logits[0, -1]
            log_p, best = p[ids].log_softmax(-1), int(p.argmax())
            if best in ids:
                total += float((log_q.exp() * (log_q - log_p)).sum()) * (1.0 if node.accepted else 0.3)
            if node.following >= 0:
                total -= 0.1 * float(log_q[node.following])
        assert float(lesson.loss(tuple(lesson.network.own.values()))) == pytest.approx(total, rel=1e-9)


@pytest.mark.slow
def test_an_untrained_head_learns_more_than_a_bigram_model_from_a_narrow_stream() -> None:
    """Greedy answers to four prompts, again and again."""
    table = TableTarget(8, order=2, seed=1)
    parts = aurora.build(table, depth=3, requests=4, positions=24, learning_rate=0.01)
    prompts, first, accepted = [(row, 2 * row + 1) for row in range(4)], 0, 0

    def note(step: Step) -> None:
        nonlocal first, accepted
        forest = step.draft.tree.forest
        for row, generated in enumerate(step.generated):
            if generated and len(forest.nodes[row]) > 1:
                first += 1
                accepted += forest.depths[step.verdict.leaf[row]] > 0

    rates, outputs = list[float](), list[list[int]]()
    for _ in range(8):
        first = accepted = 0
        outputs = texts(parts, prompts, [SamplingParams(max_tokens=40)] * 4, observe=note)
        rates.append(accepted / first)
    after = defaultdict[int, Counter[int]](Counter)
    for prompt, output in zip(prompts, outputs, strict=True):
        for token, following in zip([prompt[1], *output], output, strict=False):
            after[token][following] += 1
    bigram = sum(max(counts.values()) for counts in after.values()) / sum(map(len, outputs))
    assert rates[0] < 0.5 * bigram and rates[-1] > 1.2 * bigram


def test_weights_are_float32_beside_a_head_of_another_type() -> None:
    made = HFTarget(copy.deepcopy(target().model).bfloat16())
    parts = aurora.build(made, depth=2, positions=16)
    assert isinstance(parts.drafter, LearningDrafter) and isinstance(parts.drafter._model, LearningHead)
    texts(parts, PROMPTS[:1], [SamplingParams(1.0, max_tokens=24, seed=1)])
    model, versions = parts.drafter._model, parts.drafter.learning.versions
    assert versions.num_updates > 1
    assert {weight.dtype for weight in model.weights} == {torch.float32}
    assert {each.dtype for each in model.network.own.values()} == {torch.bfloat16}
