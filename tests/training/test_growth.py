"""`outpace train domain-drafter`: data that grows while it pays, and what is forgotten of other domains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import outpace
from outpace.api.model import Model
from outpace.training import growth
from outpace.training.config import ConfigError
from outpace.training.evaluation import DrafterEvaluation
from outpace.training.growth import sizes
from outpace.training.lessons.draft_models import DraftModelLesson, SequenceLesson
from outpace.training.run import Trained, train
from outpace.training.texts import DataError, Example
from outpace.training.trainer import Trainer, trained

QUICK = (
    "batch=2 texts=14 held_out=0.2 length=32 save_every=2 answers.max_tokens=10 answers.batch=3 "
    "optimizer.warm_up=1 growth.first=4 growth.epochs=1 growth.least_gain=-1"
).split()


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"def f{index}(a, b):\n    return a + b\n"} for index in range(24)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def run(
    model: Model,
    tiny,
    data: str,
    folder: Path,
    *changes: str,
    general: str | None = None,
    captured: Path | None = None,
) -> Trained:
    return train(
        "domain-drafter",
        target=model,
        data=data,
        output=folder,
        draft=tiny.draft,
        changes=[*QUICK, *changes],
        general=general,
        captured=captured,
    )


def test_sizes_double_and_end_with_all() -> None:
    assert list(sizes(100, 16)) == [16, 32, 64, 100]
    assert list(sizes(64, 16)) == [16, 32, 64] and list(sizes(5, 16)) == [5]


def test_data_grows_and_forgetting_is_reported(model, tiny, data, tmp_path) -> None:
    general = tmp_path / "general.jsonl"
    general.write_text("\n".join(json.dumps({"prompt": f"{number} apples and"}) for number in range(9)))
    found = run(model, tiny, data, tmp_path / "domain", general=str(general))
    grown = found.growth
    assert grown is not None and [each.num_prompts for each in grown.rounds] == [4, 8, 11]
    texts = [each.num_texts for each in grown.rounds]
    assert texts == sorted(texts) and texts[0] >= 4
    best = max(each.evaluation.acceptance for each in grown.rounds)
    assert found.evaluations == (grown.rounds[grown.kept].evaluation,)
    assert found.evaluations[0].acceptance == best and found.num_texts == texts[grown.kept]
    assert grown.general is not None and grown.general[0] != grown.general[1]
    card = (tmp_path / "domain" / "README.md").read_text()
    facts = json.loads((tmp_path / "domain" / "training.json").read_text())
    assert facts["growth"]["findings"] == grown.findings
    for line in grown.findings:
        assert f"- {line}\n" in card
    assert grown.findings[-1].startswith("on texts of other domains: acceptance 0.")
    given = {"method": "speculative-sampling", "draft": str(tmp_path / "domain"), "max_tokens": 12}
    plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
    assert outpace.generate(model, "def add(a, b):", **given)[0].tokens == plain[0].tokens


@pytest.mark.slow
def test_runs_that_share_answers_have_general_texts_of_their_own(model, tiny, data, tmp_path) -> None:
    forgotten, shared = [], tmp_path / "shared"
    for name, captured in (("apples", shared), ("pears", shared), ("pears", None)):
        general = tmp_path / f"{name}.jsonl"
        rows = [{"prompt": f"{number} {name} and the"} for number in range(9)]
        general.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        folder = tmp_path / f"{name} {captured is None}"
        found = run(model, tiny, data, folder, general=str(general), captured=captured).growth
        assert found is not None and found.general is not None
        forgotten.append(found.general)
    assert forgotten[0] != forgotten[1] == forgotten[2]


def test_it_stops_where_the_gain_is_small_and_answers_no_more_prompts(
    model, tiny, data, tmp_path, monkeypatch
) -> None:
    acceptances = iter([0.3, 0.5, 0.7, 0.69])  # before training, then of each round

    def measured(self, step, batches):
        return DrafterEvaluation(step, next(acceptances), 1.5, (0.5,))

    monkeypatch.setattr(DraftModelLesson, "evaluation", measured)
    found = run(model, tiny, data, tmp_path / "domain", "growth.least_gain=0.05", "growth.first=2").growth
    assert found is not None and found.before.acceptance == 0.3 and found.general is None
    assert [each.num_prompts for each in found.rounds] == [2, 4, 8] and found.kept == 1
    answers = tmp_path / "domain" / "work" / "growth" / "answers"
    assert len(list(answers.glob("*.json"))) == 3  # groups of 3 with the first 8 prompts, of 11


def test_rounds_learn_from_their_prompts_alone_and_the_best_one_is_kept(
    model, tiny, data, tmp_path, monkeypatch
) -> None:
    learned, trainers = list[list[Example]](), list[Trainer]()
    acceptances = iter([0.3, 0.5, 0.7, 0.6])  # before training, then of each round
    kept = list[Trainer]()

    def measured(self, step, batches):
        return DrafterEvaluation(step, next(acceptances), 1.5, (0.5,))

    def watched(lesson, target, texts, held_out, *rest):
        assert not {tuple(each.tokens) for each in texts} & {tuple(each.tokens) for each in held_out}
        learned.append(texts)
        trainers.append(trained(lesson, target, texts, held_out, *rest))
        return trainers[-1]

    def kept_by(*arguments):
        found = growth.grown(*arguments)
        kept.append(found[1])
        return found

    monkeypatch.setattr(DraftModelLesson, "evaluation", measured)
    monkeypatch.setattr(growth, "trained", watched)
    monkeypatch.setattr("outpace.training.run.grown", kept_by)
    found = run(model, tiny, data, tmp_path / "domain", "length=64").growth
    assert found is not None and found.kept == 1 and kept == [trainers[1]]
    # each prompt and its answer fit into one piece; those of a round are answered in groups of 3
    assert [len(each) for each in learned] == [4, 8, 11]


@pytest.mark.slow
def test_rounds_begin_anew(model, tiny, data, tmp_path) -> None:
    """The second round of a run is the first one of a run that begins with as many prompts."""
    every = run(model, tiny, data, tmp_path / "every").growth
    only = run(model, tiny, data, tmp_path / "only", "growth.first=11").growth
    assert only is not None and every is not None and len(only.rounds) == 1
    assert every.rounds[-1] == only.rounds[0] and every.before == only.before


class Stopped(Exception):
    pass


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_to_the_same_draft_model(
    model, tiny, data, tmp_path, monkeypatch
) -> None:
    whole = run(model, tiny, data, tmp_path / "whole")
    made, count = growth.trained, 0

    def stopping(*given):
        nonlocal count
        count += 1
        if count == 2:
            raise Stopped
        return made(*given)

    monkeypatch.setattr(growth, "trained", stopping)
    with pytest.raises(Stopped):
        run(model, tiny, data, tmp_path / "part")
    part = run(model, tiny, data, tmp_path / "part")
    assert part.growth == whole.growth and count == 2 + 3
    first, second = (load_file(each.folder / "model.safetensors") for each in (whole, part))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_access_to_text_only_learns_from_the_answers(model, tiny, data, tmp_path, monkeypatch) -> None:
    used = list[type]()
    for kind in (DraftModelLesson, SequenceLesson):
        forward = kind.forward

        def watched(self, batch, noise, forward=forward, kind=kind):
            used.append(kind)
            return forward(self, batch, noise)

        monkeypatch.setattr(kind, "forward", watched)
    weights = []
    for access, kind in (("logits", DraftModelLesson), ("text", SequenceLesson)):
        used.clear()
        changes = (f"distillation.access={access}", "growth.first=11", "distillation.on_policy=1")
        folder = run(model, tiny, data, tmp_path / access, *changes).folder
        assert used and set(used) == {kind}
        weights.append(load_file(folder / "model.safetensors"))
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_unsuited_settings_are_refused(model, tiny, data, tmp_path) -> None:
    for change, message in (
        ("distillation.access=api", "distillation.access is logits or text, not api"),
        ("growth.first=0", "growth.first is 1 or more and growth.epochs above 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(model, tiny, data, tmp_path / "bad", change)
    with pytest.raises(DataError, match="texts of other domains are too long to be answered"):
        run(model, tiny, data, tmp_path / "long", general="builtin:code")
    with pytest.raises(ConfigError, match="fastdraft reports nothing about other domains: leave out general"):
        train("fastdraft", target=model, data=data, output=tmp_path / "f", general=data)
    with pytest.raises(ConfigError, match="domain-drafter needs draft: the model to train"):
        train("domain-drafter", target=model, data=data, output=tmp_path / "d")
