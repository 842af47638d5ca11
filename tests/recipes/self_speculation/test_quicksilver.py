"""QuickSilver: the target with fewer layers for tokens that do not need them, decoded or as a drafter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import outpace
from benchmarks.quicksilver import calibrated, perplexity
from benchmarks.quicksilver import main as calibrate
from outpace.bench.measure.contender import MethodContender
from outpace.core.contracts import Guarantee
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.slim.partial_target import PartialTarget
from outpace.models.slim.savings import Savings
from outpace.models.table import TableTarget
from outpace.proof.models import transformers_models
from outpace.proof.suite import Subject, ragged
from outpace.recipes import get
from outpace.recipes.self_speculation.quicksilver import quicksilver
from outpace.sampling.target_probs import LazyTargetProbs
from tests.tiers import only

OFF = {"drift": 0.0, "fusion": 0.0}
MECHANISMS = [
    {"drift": 100.0, "entropy": 0.9, "fusion": 0.0},
    {"drift": 100.0, "entropy": 0.9, "fusion": 0.0, "skip_kv": False},
    {"drift": 0.0, "fusion": 0.6},
    {**OFF, "quantize": True},
    {"drift": 100.0, "entropy": 0.9, "fusion": 0.6, "quantize": True},
]


@pytest.fixture(scope="module")
def models():
    return transformers_models()


@pytest.mark.parametrize("options", only([MECHANISMS[0], MECHANISMS[-1]], MECHANISMS), ids=str)
def test_each_saving_has_the_distribution_of_its_definition(options, models) -> None:
    proof = Subject(quicksilver, options, models).prove(ragged, 100)
    assert proof.verdict == "as stated", (proof.verdict, proof.error, proof.loss)


@pytest.mark.slow
def test_as_a_drafter_it_is_exact(models) -> None:
    proof = Subject(quicksilver, {**MECHANISMS[-1], "role": "drafter"}, models).prove(ragged, 250)
    assert proof.as_promised and proof.loss is None and proof.accepted > 10


def test_what_each_role_promises() -> None:
    target = TableTarget(5)
    assert quicksilver.guarantee is Guarantee.LOSSY
    assert quicksilver.build(target).guarantee is Guarantee.LOSSY
    assert quicksilver.build(target, role="drafter").guarantee is Guarantee.EXACT
    assert quicksilver.build(target, **quicksilver.exact_with).guarantee is Guarantee.EXACT
    # no prediction has an entropy below 0, so nothing halts
    assert quicksilver.build(target, entropy=0.0, fusion=0.0).guarantee is Guarantee.EXACT


@pytest.fixture(scope="module")
def zoo():
    return outpace.load("zoo:target", dtype="float32")


PROMPTS = ["def add(a, b):", "import os\n\n\nclass Tree:\n    def __init__(self, "]
GREEDY = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}


def texts(zoo, **options) -> list[list[int]]:
    return [result.tokens for result in outpace.generate(zoo, PROMPTS, "quicksilver", **GREEDY, **options)]


@pytest.mark.slow
def test_texts_of_the_package_s_target(zoo) -> None:
    plain = [result.tokens for result in outpace.generate(zoo, PROMPTS, "autoregressive", **GREEDY)]
    assert texts(zoo, **OFF) == plain
    assert texts(zoo, role="drafter", entropy=1.0, depth=3) == plain
    assert texts(zoo, entropy=100.0, fusion=0.0) != plain


@pytest.mark.slow
def test_tokens_that_halt_are_accepted_as_drafts(zoo) -> None:
    """At the usual thresholds the draft is nearly the target; from half of its layers it is far from it."""
    found = []
    for options in ({}, {"drift": 100.0, "entropy": 100.0}):
        results = outpace.generate(zoo, PROMPTS, "quicksilver", **GREEDY, role="drafter", **options)
        found.append(sum(each.statistics.num_accepted_draft_tokens for each in results))
        drafted = sum(each.statistics.num_draft_tokens for each in results)
        if not options:
            assert found[0] > 0.9 * drafted
    assert found[0] > found[1]


def test_perplexity_rises_and_work_falls_with_the_thresholds(zoo) -> None:
    text = zoo.tokenizer(
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
        "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n"
    )["input_ids"]
    found = []
    for entropy in (0.0, 0.25, 1.0, 100.0):
        parts = quicksilver.build(zoo.target, entropy=entropy, fusion=0.0)
        model = parts.target
        assert isinstance(model, PartialTarget)
        found.append((perplexity(model, [text]), model.work.layer_tokens, model.share_of_products))
    assert found[0][0] == pytest.approx(perplexity(zoo.target, [text]), rel=1e-6)
    assert found == sorted(found) and found[-1][0] > found[0][0] + 0.2
    assert [each[1] for each in found] == sorted((each[1] for each in found), reverse=True)
    assert found[-1][2] < 0.75


@pytest.mark.slow
def test_thresholds_within_a_budget(models) -> None:
    target, budget = models.target, 0.1
    found = calibrated(target, models.texts, budget, savings=Savings(1, drift=50.0, entropy=0.5))
    assert found.plain == pytest.approx(perplexity(target, models.texts))
    assert found.perplexity <= found.plain + budget and 0 < found.savings.entropy < 2.0
    with pytest.raises(ValueError, match="two tokens or more"):
        perplexity(target, [[1]])
    with pytest.raises(ValueError, match="TableTarget cannot be calibrated"):
        calibrated(TableTarget(3), [[0, 1, 2]])


def test_the_program_prints_thresholds_as_options(
    tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("def push(self, item):\n    self.items.append(item)\n", encoding="utf-8")
    calibrate([text], tiny.target, 0.5)
    assert re.fullmatch(
        r"--drift \S+ --entropy \S+ --fusion \S+\nperplexity .+\n\S+% of the mult.+\n",
        capsys.readouterr().out,
    )


@pytest.mark.slow
def test_results_say_that_the_text_is_not_the_target_s(zoo) -> None:
    lossy, exact = (
        outpace.generate(zoo, PROMPTS[0], "quicksilver", **GREEDY, role=role)[0]
        for role in ("target", "drafter")
    )
    assert lossy.reference is not None and "approximation" in lossy.reference and exact.reference is None
    assert "reference" in json.loads(json.dumps(lossy.as_dict())) and "reference" not in exact.as_dict()
    parts = quicksilver.build(zoo.target)
    assert not MethodContender("quicksilver", "quicksilver", parts).lossless(0.0)


def test_a_step_reads_one_token_and_drafts_nothing() -> None:
    parts = get("quicksilver").build(TableTarget(5))
    steps = list(
        Session(parts, [torch.tensor([1, 2])], [SamplingParams(1.0, max_tokens=5)], LazyTargetProbs).steps()
    )
    assert [len(step.draft.tree) for step in steps] == [1] * 5


def test_unsuited_options() -> None:
    with pytest.raises(
        ValueError, match="first_layer is 4: a model of 4 layers can save after layers 1 to 3"
    ):
        quicksilver.build(TableTarget(5), first_layer=4)
    with pytest.raises(ValueError, match="drift is -1.0"):
        quicksilver.build(TableTarget(5), drift=-1.0)
