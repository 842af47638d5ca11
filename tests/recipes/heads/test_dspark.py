"""DSpark: a block whose tokens are drawn given the one before, and cut by the head's own prediction."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from outpace.controllers.adaptive_depth import FIRST_DEPTHS
from outpace.controllers.step_cost import StepCost
from outpace.core.claim import Drawn
from outpace.core.context import Context
from outpace.core.contracts import Draft, Plan, Step
from outpace.cost.linear_cost import Numbers
from outpace.drafters.model.feature_drafter import FeatureDrafter
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.dspark.head import DSparkHead, untrained_dspark
from outpace.models.heads.dspark.lesson import METHODS, DSparkLesson
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.head_model import HeadModel
from outpace.models.hf.target import HFTarget
from outpace.proof.enumeration import BOUND, enumerate_distributions, largest_error
from outpace.proof.models import peaked_tables
from outpace.recipes.heads.dflash import dflash
from outpace.recipes.heads.dspark import dspark
from outpace.training.config import Head
from outpace.training.features import Batch
from outpace.training.lessons.feature_heads import features_of
from outpace.training.packed_blocks import packed_blocks
from tests.recipes.heads.test_dflash import CASES, VOCAB, alone, muse_of, states_of, steps_of, target
from tests.tiers import slow


def head_of(seed: int = 4, **options: Any) -> Any:
    """A head with random weights; `options`: of the class."""
    head: Any = untrained_dspark(target(), seed)
    if options:
        given = {"vocab": VOCAB, "mask_token": head.mask_token, "num_masks": head.num_masks, **options}
        bare = DSparkHead(head.config, head.embed_tokens, head.lm_head, head.taps, **given)
        bare.load_state_dict(head.state_dict(), strict=False)
        head = bare.to(next(head.parameters())).eval()
    return head


def as_dflash(head: Any) -> Any:
    """The head of DFlash with the same weights."""
    made = DFlashHead(
        head.config, head.embed_tokens, head.lm_head, head.taps, mask_token=head.mask_token,
        num_masks=head.num_masks, drafts_at_root=head.drafts_at_root,
    )  # fmt: skip
    shared = {name: weight for name, weight in head.state_dict().items() if name in made.own}
    made.load_state_dict(shared, strict=False)
    return made.to(next(head.parameters())).eval()


def bias(head: Any, token: int) -> Tensor:  # (V,)
    with torch.no_grad():
        return head.markov_head.markov_w2.weight @ head.markov_head.markov_w1.weight[token]


def odds(head: Any, state: Tensor, token: int) -> Tensor:
    with torch.no_grad():
        read = torch.cat((state, head.markov_head.markov_w1.weight[token]))
        return (head.confidence_head.proj(read)).sigmoid()


@pytest.mark.parametrize(
    ("temperature", "confidence"), [slow(0.0, 0.0), (0.0, 0.3), slow(1.0, 0.0), (1.0, 0.3)]
)
def test_drafts_are_those_of_the_plain_loop(temperature: float, confidence: float) -> None:
    """Two texts at once with KV caches, against transformers' class without a cache, the bias of the token
    before, and the product of the predictions, one token after the other."""
    head = head_of()
    muse, lengths = muse_of(as_dflash(head)), set[int]()
    parts = dspark.build(target(), head=HeadModel(head), confidence=confidence)
    for step in steps_of(parts, temperature):
        tree, forest = step.draft.tree, step.draft.tree.forest
        for row in range(len(step.ctx.slots)):
            nodes, room = forest.nodes[row], min(7, step.ctx.max_draft_depth[row])
            if not room:
                continue
            text = step.ctx.tokens[row][: step.ctx.committed[row]]
            logits, states = alone(muse, head, text), states_of(muse, head, text)
            survival = torch.ones(())
            for level in range(room):
                before = int(tree.tokens[nodes[level]]) if level < len(nodes) else -1
                survival = survival * odds(head, states[level], before)
                if level and survival < confidence:
                    break
                given = logits[level] + bias(head, before)
                drawn = nodes[level + 1]
                if temperature == 0:
                    assert int(tree.tokens[drawn]) == int(given.argmax())
                else:
                    assert isinstance(tree.claim, Drawn)
                    assert (tree.claim.q[tree.claim.row[drawn]] - given.softmax(-1)).abs().max() < 1e-5
            else:
                level = room
            assert len(nodes) - 1 == level
            lengths.add(level)
            assert step.draft.forwards == 1
    assert len(lengths) > (3 if confidence else 1)


@pytest.mark.parametrize("at_root", [True, slow(False)])
def test_without_biases_it_is_dflash(at_root: bool) -> None:
    head = head_of(drafts_at_root=at_root)
    torch.nn.init.zeros_(head.markov_head.markov_w2.weight)
    found = list[list[Any]]()
    for method, options, made in ((dspark, {"confidence": 0.0}, head), (dflash, {}, as_dflash(head))):
        steps = steps_of(method.build(target(), head=HeadModel(made), **options), 1.0)
        found.append([(step.draft.tree.tokens.tolist(), step.draft.tree.claim) for step in steps])
    for (tokens, claim), (others, other) in zip(*found, strict=True):
        assert tokens == others and (claim is None) == (other is None)
        assert claim is None or (claim.row == other.row and torch.equal(claim.q, other.q))
    assert max(len(tokens) for tokens, _ in found[0]) == 2 + 2 * (6 + at_root)


class Marginals(FeatureDrafter):
    """Mutant: tokens are drawn given the one before, and claimed to be drawn as in a block of DFlash."""

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        draft = super().propose(ctx, plan)
        head: Any = self.opened.head
        weight = head.markov_head.markov_w2.weight.data
        kept = weight.clone()
        weight.zero_()
        claim = super().propose(ctx, plan).tree.claim
        weight.copy_(kept)
        return replace(draft, tree=replace(draft.tree, claim=claim))


@pytest.mark.slow
def test_a_claim_of_dflash_s_distributions_is_caught() -> None:
    """Also that the right claim is exact."""
    of = peaked_tables()
    head = HeadModel(untrained_dspark(of.target, 1))
    parts, errors = dspark.build(of.target, head=head, depth=2, confidence=0.0), list[float]()
    mutant: Any = copy.copy(parts.drafter)
    mutant.__class__ = Marginals
    for each in (parts.drafter, mutant):
        found = enumerate_distributions(lambda each=each: replace(parts, drafter=each), CASES)
        errors.append(largest_error(found, of.logits, CASES))
    assert errors[0] < BOUND and errors[1] > 1e-3


@pytest.mark.parametrize("layout", ["deepspec", "speculators"])
@pytest.mark.parametrize("at_root", [True, False])
def test_files_are_read_as_they_were_written(layout: str, at_root: bool, tmp_path: Path) -> None:
    head = head_of(drafts_at_root=at_root)
    save_head(head, tmp_path, target(), layout=layout)
    config = json.loads((tmp_path / "config.json").read_text())
    numbers = config["target_layer_ids" if layout == "deepspec" else "aux_hidden_state_layer_ids"]
    assert numbers == [tap + (layout == "speculators") for tap in head.taps]
    assert config["markov_rank"] == 256 and config["block_size"] == 7
    if layout == "speculators":  # as speculators wrote before it had that key
        del config["sample_from_anchor"]
        (tmp_path / "config.json").write_text(json.dumps(config))
    found: Any = load_head("dspark", tmp_path, target())
    assert found.drafts_at_root == at_root and found.block_levels == 6 + at_root
    assert found.predicts_acceptance and found.reads_tokens
    assert all(torch.equal(found.own[name], weight) for name, weight in head.own.items())


def test_a_draft_vocabulary_and_no_confidence_are_stored(tmp_path: Path) -> None:
    head = head_of()
    config, ids = copy.deepcopy(head.config), torch.tensor([0, 3, 4, 7, 11])
    config.vocab_size = len(ids)
    small: Any = DSparkHead(
        config, target().embed, target().head, head.taps, vocab=VOCAB, mask_token=5, num_masks=3, rank=2,
        draft_ids=ids, confidence=False,
    ).to(next(head.parameters()))  # fmt: skip
    with pytest.raises(HeadFileError, match="deepspec has no draft vocabulary: write the layout speculators"):
        save_head(small, tmp_path, target(), layout="deepspec")
    save_head(small, tmp_path, target(), layout="speculators")
    found: Any = load_head("dspark", tmp_path, target())
    with pytest.raises(ValueError, match="does not predict acceptance: draft whole blocks, with conf"):
        dspark.build(target(), head=HeadModel(found))
    steps = steps_of(dspark.build(target(), head=HeadModel(found), confidence=0.0))
    drafted = [step.draft.tree.tokens[len(step.ctx.slots) :].tolist() for step in steps]
    assert max(map(len, drafted)) == 8 and {token for each in drafted for token in each} <= set(ids.tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markov_head_type": "gated"}, "of the type gated, and outpace has those of the type vanilla: give"),
        (
            {"markov_rank": 0},
            "no markov_rank above 0: restore that file, or give a head without a",
        ),
        ({"num_target_layers": 36}, "for a target of 36 layers, and this one has"),
        ({"enable_confidence_head": "x"}, "enable_confidence_head 'x', but it is true or false"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(changes: Any, message: str, tmp_path: Path) -> None:
    save_head(head_of(), tmp_path, target())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(HeadFileError, match=message):
        load_head("dspark", tmp_path, target())


def test_a_text_s_tokens_stand_for_those_drafted_before() -> None:
    """In training, the logits at each column are those of its block with the text's biases, the acceptance is
    learned from them, and every weight learns."""
    of = HFTarget(copy.deepcopy(target().model).float())
    head: Any = untrained_dspark(of, 4)
    lesson = DSparkLesson(head, of.head, Head())
    assert lesson.num_steps == 7 and METHODS[0].defaults().head.num_heads == 7
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    hidden = {layer: torch.randn(1, 10, 16) for layer in (-1, *head.taps)}
    all_of_them = torch.ones_like(tokens, dtype=torch.bool)
    batch = Batch(tokens, all_of_them, all_of_them, hidden)
    columns = lesson.columns(batch)
    found = torch.stack(list(lesson.drafted(batch, 3)), 1)
    for step in packed_blocks(head, tokens, features_of(head, batch), columns, 3):
        for place, (_, column) in enumerate(columns.nonzero().tolist()):
            before = [*tokens[0].tolist(), 0, 0][column + 1 + step.step]
            expected = head.lm_head(step.outputs[place]) + bias(head, before)
            assert (found[place, step.step] - expected).abs().max() < 1e-5
    lesson(batch, torch.Generator().manual_seed(0)).backward()
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in head.own.values())


@pytest.mark.slow
def test_a_compiled_head_drafts_the_same_in_one_forward() -> None:
    pytest.importorskip("openvino")
    of = HFTarget(copy.deepcopy(target().model).float())
    head, found = untrained_dspark(of, 4), list[list[list[int]]]()
    for opened in (HeadModel(head), HeadModel(head, compile=True)):
        steps = steps_of(dspark.build(of, head=opened))
        assert {step.draft.forwards for step in steps} <= {0, 1}
        found.append([step.draft.tree.tokens.tolist() for step in steps])
    assert opened.model.compiled is not None
    assert found[0] == found[1] and len(found[0]) >= 5


def test_a_block_is_drafted_as_far_as_pays() -> None:
    """Where verification costs much, chains end where the head expects less; its forward is made anyway."""
    head, lengths = HeadModel(head_of()), list[list[int]]()
    for per_token in (1e-4, 0.5):
        parts = dspark.build(target(), head=head, adaptive=True)
        controller: Any = parts.controller
        controller._cost, controller._num_plans = KnownTimes(per_token), len(FIRST_DEPTHS)
        steps = steps_of(parts, 1.0, max_tokens=40)
        found = [len(nodes) - 1 for step in steps for nodes in step.draft.tree.forest.nodes]
        lengths.append([length for length in found if length])
        assert {step.draft.forwards for step in steps} <= {0, 1}
    assert max(lengths[0]) == 7 and sum(lengths[0]) / len(lengths[0]) > sum(lengths[1]) / len(lengths[1]) + 1


class KnownTimes(StepCost):
    """A second for a forward of the target, more for every draft token, a tenth for the head's."""

    def __init__(self, per_token: float) -> None:
        super().__init__()
        self._per_token = per_token

    def knows(self, rows: int) -> bool:
        return True

    def record(self, step: Step, drafted: int) -> None:
        """Does nothing: nothing is left to measure."""

    def record_drafting(self, step: Step, read: int) -> None:
        assert read >= step.draft.forwards * 7  # a block is read as a whole

    def seconds(self, rows: int, context: int, unread: int, forwards: Numbers, drafted: Numbers) -> Numbers:
        assert float(numpy.max(forwards)) <= 1
        return 1 + self._per_token * drafted + 0.1 * forwards
