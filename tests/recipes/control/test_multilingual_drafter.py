"""Draft models for one language each: which of them drafts for a prompt."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from transformers import AutoTokenizer

from outpace import recipes
from outpace.controllers.prompt_router import PromptRouter
from outpace.core.contracts import Step
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.drafters.compose.specialists import Specialist, Specialists
from outpace.drafters.model.draft_model import DraftModel
from outpace.indexes.prompt_profile import FILE, ProfileError, PromptProfile
from outpace.models.table import TableTarget
from outpace.proof.models import tables
from outpace.proof.suite import PROMPTS, Subject, ragged
from outpace.recipes._option_kinds import FunctionOpener, kind_of
from outpace.recipes.base.speculative_sampling import speculative_sampling
from outpace.recipes.control.multilingual_drafter import multilingual_drafter
from outpace.sampling.target_probs import LazyTargetProbs
from outpace.serving.methods import open_methods
from outpace.zoo import path
from tests.controllers.test_bandits import context
from tests.recipes.counting_model import counting

VOCAB, HALF = 60, 30
SENTENCES: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "sentences.json").read_text(encoding="utf-8")
)
LEARNED = {language: sentences[:12] for language, sentences in SENTENCES.items()}
HELD_OUT = {language: sentences[12:] for language, sentences in SENTENCES.items()}


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(path("target"))


def tokens(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("instruction", ["", "Translate into English: "])
def test_the_language_of_held_out_sentences_is_recognised(instruction: str) -> None:
    """From twelve sentences of each language."""
    size = len(tokenizer())
    profiles = [
        PromptProfile.learned([tokens(instruction + each) for each in sentences], size)
        for sentences in LEARNED.values()
    ]
    router = PromptRouter(profiles, 5)
    found = [
        router.drafter_for(tokens(instruction + each)) == drafter
        for drafter, sentences in enumerate(HELD_OUT.values(), 1)
        for each in sentences
    ]
    assert len(found) == 48 and sum(found) >= 0.95 * len(found)


def test_prompts_of_no_specialist_get_the_generic_draft_model() -> None:
    """Prompts in an alphabet that no specialist has. To refuse related languages takes more sentences."""
    profiles = [
        PromptProfile.learned(list(map(tokens, LEARNED[language])), len(tokenizer()))
        for language in ("Russian", "Japanese", "Chinese")
    ]
    router = PromptRouter(profiles, 5)
    others = [
        *HELD_OUT["Spanish"],
        *HELD_OUT["German"],
        "def add(a, b):\n    return a + b\n",
        "import os\nimport sys\n",
    ]
    assert [router.drafter_for(tokens(each)) for each in others] == [0] * len(others)


def test_the_likelihood_is_the_hand_computed_one() -> None:
    profile = PromptProfile(4, {0: 3, 1: 1}, {(0, 1): 1}, least=-1.0)
    alone = {0: 3.5 / 6, 1: 1.5 / 6, 2: 0.5 / 6}
    expected = torch.tensor([(1 + 4 * alone[1]) / (1 + 4), alone[2]])
    assert profile.likelihood([0, 1, 2]) == pytest.approx(expected.log().mean().item())
    assert profile.likelihood([1]) == pytest.approx(math.log(alone[1]))
    assert sum(profile._prob(0, token) for token in range(4)) == pytest.approx(1)


def test_a_profile_is_saved_and_read(tmp_path: Path) -> None:
    profile = PromptProfile.learned([[0, 1, 2, 0], [0, 1], [1, 2, 2]], 3)
    profile.save(tmp_path)
    again = PromptProfile.load(tmp_path)
    assert vars(again) == vars(profile)
    (tmp_path / FILE).write_text('{"vocab": 3}')
    with pytest.raises(ProfileError, match=r"prompts.json cannot be read: restore it"):
        PromptProfile.load(tmp_path)
    with pytest.raises(ProfileError, match="has no file prompts.json, by which .* --set steps=0"):
        PromptProfile.load(tmp_path / "none")
    with pytest.raises(ProfileError, match="there are 1 prompts: give two or more"):
        PromptProfile.learned([[1, 2]], 3)


def half(first: int, end: int) -> TableTarget:
    """A draft model that is right after the tokens from `first` to before `end` only."""
    model = counting(VOCAB)
    last = torch.arange(len(model.logits)) % VOCAB
    right = (first <= last) & (last < end)
    model.logits = torch.where(right[:, None], model.logits, model.logits.roll(1, -1))
    return model


def specialists() -> Specialists:
    """One for texts in the lower half of the vocabulary, one for those in the upper half."""
    found = list[Specialist]()
    for first, end in ((0, HALF), (HALF, VOCAB)):
        prompts = [[first + (at + each) % HALF for each in range(12)] for at in range(0, HALF, 3)]
        found.append(Specialist(half(first, end), PromptProfile.learned(prompts, VOCAB)))
    return Specialists(tuple(found))


def run(prompts: Sequence[Sequence[int]], count: int, temperature: float = 1.0) -> list[Step]:
    parts = multilingual_drafter(counting(VOCAB), draft=half(0, 0), specialists=specialists(), depth=4)
    sampling = [SamplingParams(temperature, max_tokens=count, seed=3)] * len(prompts)
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    steps = list(session.steps())
    for slot, prompt in enumerate(prompts):
        expected = [(prompt[-1] + place) % VOCAB for place in range(1, count + 1)]
        assert session.request(slot).output() == expected
    return steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_request_has_the_draft_model_for_its_prompt(temperature: float) -> None:
    lower, upper, none = [2, 3, 4, 5], [32, 33, 34, 35], [5, 32, 4, 33]
    steps = run([lower, upper, none], 20, temperature)
    lengths = [[len(row) for row in step.generated] for step in steps]
    assert lengths[:2] == [[5, 5, 1], [5, 5, 1]]


def test_a_request_keeps_its_draft_model_when_its_text_changes(monkeypatch) -> None:
    reads = list[int]()
    propose = DraftModel.propose

    def watched(self, ctx, plan):
        reads.append(id(self))
        return propose(self, ctx, plan)

    monkeypatch.setattr(DraftModel, "propose", watched)
    lengths = [len(step.generated[0]) for step in run([[20, 21, 22, 23]], 40)]
    assert lengths[0] == 5 and lengths[4:20] == [1] * 16
    assert len(reads) == len(lengths) - (lengths[-1] == 1) and len(set(reads)) == 1


def test_a_request_that_goes_on_is_routed_by_its_prompt_alone() -> None:
    """After it was preempted its text also has generated tokens."""
    profiles = [
        SimpleNamespace(least=0.5, likelihood=lambda text: sum(token < 30 for token in text) / len(text)),
        SimpleNamespace(least=0.5, likelihood=lambda text: sum(token >= 30 for token in text) / len(text)),
    ]
    ctx = replace(context(1), tokens=(torch.tensor([2, 3, *[40] * 9]),), committed=(11,), prompt_lengths=(2,))
    assert PromptRouter(cast(Any, profiles), 4).plan(ctx).drafter == (1,)


def test_without_specialists_it_is_speculative_sampling() -> None:
    target, draft = TableTarget(8, seed=1), TableTarget(8, seed=2)
    found = []
    for parts in (
        multilingual_drafter(target, draft=draft, depth=3),
        speculative_sampling(target, draft=draft, depth=3),
    ):
        params = SamplingParams(1.0, max_tokens=40, seed=5)
        session = Session(parts, [torch.tensor([1, 2])], [params], LazyTargetProbs)
        found.append([step.generated for step in session.steps()])
    assert found[0] == found[1]


def test_exact_with_prompts_of_several_draft_models() -> None:
    models = tables()
    kind = kind_of(Specialists)
    assert kind is not None
    chosen = kind.fixture(models)
    router = PromptRouter([each.profile for each in chosen.each], 2)
    prompts = [case.prompt for case in ragged(3)] + list(PROMPTS)
    assert len({router.drafter_for(prompt) for prompt in prompts}) > 1
    options = {"draft": models.drafts[0], "specialists": chosen, "depth": 2}
    proof = Subject(multilingual_drafter, options, models).prove(ragged, 1000)
    assert proof.holds and proof.deepest >= 2, proof.verdict


def test_unsuited_specialists_are_refused(tmp_path: Path) -> None:
    target, draft = counting(VOCAB), counting(VOCAB)
    opener = FunctionOpener(lambda value: draft)

    def configured(value: object) -> dict[str, Any]:
        options = {"draft": draft, "specialists": value}
        return recipes.configure(multilingual_drafter, target, options, opener)

    with pytest.raises(ProfileError, match="has no file prompts.json"):
        configured(str(tmp_path))
    with pytest.raises(recipes.RecipeError, match="the folder of a draft model, not a TableTarget"):
        configured((draft,))
    PromptProfile.learned([[0, 1], [1, 0]], 3).save(tmp_path)
    with pytest.raises(recipes.RecipeError, match="counted with 3 tokens and the target has 60"):
        configured(str(tmp_path))
    PromptProfile.learned([[0, 1], [1, 0]], VOCAB).save(tmp_path)
    found = configured(f"({tmp_path},{tmp_path})")["specialists"]
    assert [each.model for each in found.each] == [draft, draft]
    with pytest.raises(ValueError, match="use 1 or more"):
        multilingual_drafter(target, draft=draft, depth=0)


def test_a_server_tells_of_a_specialist_that_reads_less_far(
    loaded: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = loaded
    messages = list[str]()  # not by caplog: programs that other tests start change what is logged
    monkeypatch.setattr("outpace.serving.methods.log.warning", messages.append)
    folder = shutil.copytree(tiny.draft, tmp_path / "short")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    PromptProfile.learned([[5, 6, 7], [5, 6]], target.target.vocab).save(folder)
    options = {"draft": draft, "specialists": str(folder)}
    open_methods(target, speculative_sampling, {"draft": draft})
    assert not messages
    open_methods(target, multilingual_drafter, options)
    [message] = messages
    assert "the specialists model reads at most 32 tokens: longer texts, of up to 256 here" in message
