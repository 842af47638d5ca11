"""`outpace train`: runs that are stopped, data and settings that cannot be used, and what a run writes."""

from __future__ import annotations

import errno
import gzip
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

import outpace
from outpace import recipes
from outpace.api.model import Model
from outpace.indexes.prompt_profile import PromptProfile
from outpace.models.adapter import EXIT_LAYER
from outpace.models.fingerprint import target_fingerprint
from outpace.models.hf.target import HFTarget
from outpace.models.slim.make import drafting_layers
from outpace.proof.models import recurrent_models
from outpace.training.answers import sampled
from outpace.training.config import ConfigError, TrainConfig, changed, settings
from outpace.training.features import FeatureSource
from outpace.training.head_methods import draft_vocabulary
from outpace.training.lessons import draft_models
from outpace.training.lessons.position_heads import PositionHeadLesson
from outpace.training.methods import named
from outpace.training.run import train
from outpace.training.texts import DataError, Example, read_prompts, split_texts
from outpace.training.trainer import Trainer, TrainingError
from tests.training.families import (
    ACCEPTANCE_PREDICTORS,
    DRAFT_MODELS,
    EXIT_MODELS,
    EXIT_PREDICTORS,
    GROWING,
    HEAD_PREDICTORS,
    JUDGES,
    METHODS,
    PLANNERS,
    POSITION_HEADS,
    ROLLBACK_PREDICTORS,
    TRUST_PREDICTORS,
)

QUICK = (
    "steps=6 batch=2 texts=8 held_out=0.2 length=32 save_every=2 evaluate_every=3 answers.max_tokens=10 "
    "answers.batch=3 optimizer.warm_up=1 head.unroll=2 predictor.depth=4 trees.groups=1 trees.size=2 "
    "trees.depth=2 trees.width=2 trees.num_nodes=4"
).split()


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"def f{index}(a, b):\n    return a + b\n"} for index in range(10)]
    rows += [{"messages": [{"role": "user", "content": f"add {index}"}]} for index in range(4)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


class Stopped(Exception):
    pass


def draft_for(method: str, tiny) -> str | None:
    predictors = {*ACCEPTANCE_PREDICTORS, *TRUST_PREDICTORS, *ROLLBACK_PREDICTORS}
    given = {*DRAFT_MODELS, *EXIT_MODELS, *predictors} - {"fastdraft"}
    return tiny.draft if method in given else None


def head_for(method: str, model: Model, data: str, folder: Path) -> str | None:
    trained_by = {"gto": "eagle3", **dict.fromkeys(HEAD_PREDICTORS, "eagle")}.get(method)
    if trained_by is None:
        return None
    changes = [*QUICK, "answers.temperatures=0"]
    return str(train(trained_by, target=model, data=data, output=folder, changes=changes).folder)


# one of each kind of lesson
QUICK_METHODS = ("eagle3", "adaspec", "disco")


@pytest.mark.parametrize(
    "method",
    [
        *QUICK_METHODS,
        *(
            pytest.param(method, marks=pytest.mark.slow)
            for method in METHODS
            if method not in {*QUICK_METHODS, *GROWING, *JUDGES}
        ),
    ],
)
def test_a_run_that_is_stopped_twice_gives_the_same_drafter(
    method, model, tiny, data, tmp_path, monkeypatch
) -> None:
    changes = QUICK
    if method in EXIT_PREDICTORS:  # tokens leave early, so that there are layers to lose
        changes = [*QUICK, "answers.temperatures=0"]
        monkeypatch.setattr("outpace.models.predictors.exits.lesson.THRESHOLD", 0.0)
    start = {"draft": draft_for(method, tiny), "head": head_for(method, model, data, tmp_path / "head")}
    if method in PLANNERS:
        given = train("specdiff", target=model, data=data, output=tmp_path / "windows", changes=QUICK)
        start["draft"] = str(given.folder)
    whole = train(method, target=model, data=data, output=tmp_path / "whole", **start, changes=changes)
    part = tmp_path / "part"
    steps = iter([3, 2])

    def stopping(run):
        left = next(steps, None)

        def advance(self, label, done):
            nonlocal left
            if label != "training" and left is not None:
                left -= 1
                if left < 0:
                    raise Stopped

        return advance

    run = Trainer.run
    for _ in range(2):
        stop = stopping(run)
        monkeypatch.setattr(
            Trainer, "run", lambda self, advance, stop=stop: run(self, lambda *rest: stop(self, *rest))
        )
        with pytest.raises(Stopped):
            train(method, target=model, data=data, output=part, **start, changes=changes)
    monkeypatch.setattr(Trainer, "run", run)
    for _ in range(2):  # the second time it is trained already, as after a stop before saving
        again = train(method, target=model, data=data, output=part, **start, changes=changes)
        first, second = (load_file(folder / "model.safetensors") for folder in (whole.folder, part))
        assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
        configs = [(folder / "config.json").read_text() for folder in (whole.folder, part)]
        logs = [folder / "work" / "checkpoints" / "log.jsonl" for folder in (whole.folder, part)]
        assert configs[0] == configs[1] and logs[0].read_text() == logs[1].read_text()
        assert method not in EXIT_PREDICTORS or json.loads(configs[0])["layers"] == [1]
        assert whole.evaluations == again.evaluations
        # where the best weights are kept, their evaluation is repeated as the last one
        assert [each.step for each in whole.evaluations][:2] == [3, 6]
    assert len(list((part / "work" / "checkpoints").glob("step-*"))) == 2  # the newest ones
    facts = json.loads((part / "training.json").read_text())
    assert facts["target"] == target_fingerprint(model.target) and facts["texts"] == whole.num_texts > 0
    assert facts["tokens"] == whole.num_tokens > whole.num_texts


def test_the_reference_of_adaspec_learns_forward_kl(model, tiny, data, tmp_path) -> None:
    """As adaspec does, whatever the divergence of distillspec."""
    weights = []
    for divergence in ("forward_kl", "reverse_kl"):
        changes = [*QUICK, f"distillation.divergence={divergence}"]
        given = {"target": model, "data": data, "draft": tiny.draft, "changes": changes}
        weights.append(
            load_file(train("adaspec", output=tmp_path / divergence, **given).folder / "model.safetensors")
        )
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_that_is_stopped_while_the_target_answers_goes_on(model, data, tmp_path, monkeypatch) -> None:
    whole = train("eagle3", target=model, data=data, output=tmp_path / "whole", changes=QUICK)
    from outpace.training import answers

    made, count = answers._answers, 0

    def stopping(*rest):
        nonlocal count
        count += 1
        if count == 2:
            raise Stopped
        return made(*rest)

    monkeypatch.setattr(answers, "_answers", stopping)
    with pytest.raises(Stopped):
        train("eagle3", target=model, data=data, output=tmp_path / "part", changes=QUICK)
    assert count == 2
    part = train("eagle3", target=model, data=data, output=tmp_path / "part", changes=QUICK)
    assert count == 4  # of three groups of prompts the first was on disk
    first, second = (load_file(each.folder / "model.safetensors") for each in (whole, part))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_trained_head_is_used_by_its_method(model, data, tmp_path) -> None:
    for method, used in (("eagle", "eagle2"), ("hass", "eagle"), ("eagle3", "eagle3")):
        folder = train(method, target=model, data=data, output=tmp_path / method, changes=QUICK).folder
        plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
        found = outpace.generate(model, "def add(a, b):", method=used, head=str(folder), max_tokens=12)
        assert found[0].tokens == plain[0].tokens


@pytest.mark.parametrize("method", ACCEPTANCE_PREDICTORS)
def test_a_trained_predictor_is_used_by_its_method(method, model, tiny, data, tmp_path) -> None:
    run = train(method, target=model, data=data, output=tmp_path / "p", draft=tiny.draft, changes=QUICK)
    given = {"method": method, "draft": tiny.draft, "predictor": str(run.folder), "max_tokens": 12}
    plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
    assert outpace.generate(model, "def add(a, b):", **given)[0].tokens == plain[0].tokens
    last = run.evaluations[-1]
    assert 0 < last.acceptance < 1 and 0 < last.probability_f1 < 1 and 0 < last.f1 < 1
    card = (run.folder / "README.md").read_text()
    assert (
        f"an F1 of {last.f1:.3f}" in card
        and f"error of the predictions is {last.calibration_error:.3f}" in card
    )
    assert "--draft draft --predictor p\n" in card and f"{tmp_path}" not in card
    with pytest.raises(ValueError, match="the predictor was trained for another draft model"):
        outpace.generate(model, "def", **given | {"draft": model})


@pytest.mark.slow
def test_a_trained_planner_is_used_by_its_method(model, tiny, data, tmp_path) -> None:
    draft = str(train("specdiff", target=model, data=data, output=tmp_path / "draft", changes=QUICK).folder)
    run = train("dultra", target=model, data=data, output=tmp_path / "p", draft=draft, changes=QUICK)
    given = {"method": "dultra", "draft": draft, "predictor": str(run.folder), "max_tokens": 12}
    plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
    found = outpace.generate(model, "def add(a, b):", **given)[0]
    assert found.tokens == plain[0].tokens and found.statistics.num_draft_tokens
    last = run.evaluations[-1]
    assert 1 <= last.forwards <= 4 and 1 <= last.confident_forwards <= 4 and 0 <= last.accepted <= 4
    card = (run.folder / "README.md").read_text()
    assert f"accepted tokens in {last.forwards:.2f} forwards" in card
    assert "--method dultra --draft draft --predictor p\n" in card
    with pytest.raises(ValueError, match="has no mask_token_id .* fills no windows: give a draft model of"):
        train("dultra", target=model, data=data, output=tmp_path / "no", draft=tiny.draft, changes=QUICK)


def test_answers_of_a_draft_end_with_the_targets_end_tokens(model, tiny, data, tmp_path, monkeypatch) -> None:
    end = set(range(0, 320, 2))
    model = replace(model, defaults=GenerationConfig(eos_token_id=sorted(end)))
    found = list[list[int]]()

    def watched(*given, **options):
        answers = sampled(*given, **options)
        found.extend(answers)
        return answers

    monkeypatch.setattr(draft_models, "sampled", watched)
    changes = [*QUICK, "distillation.on_policy=1", "distillation.on_policy_tokens=8"]
    train("distillspec", target=model, data=data, output=tmp_path, draft=tiny.draft, changes=changes)
    assert len(found) == 12  # 6 steps of 2 texts
    ends = [[token in end for token in answer] for answer in found]
    assert all(not any(each[:-1]) and (each[-1] or len(each) == 8) for each in ends)


def test_a_specialist_is_trained_with_the_profile_of_its_prompts(model, tiny, data, tmp_path) -> None:
    name, folder = "multilingual-drafter", tmp_path / "german"
    train(name, target=model, data=data, output=folder, draft=tiny.draft, changes=QUICK)
    profile = PromptProfile.load(folder)
    prompts = read_prompts(data, model, 8, 0)
    assert sum(profile.tokens.values()) == sum(len(each.tokens) for each in prompts)
    assert (
        f"--method {name} --draft {Path(tiny.draft).name} --specialists german,OTHERS\n"
        in (folder / "README.md").read_text()
    )
    given = {"method": name, "draft": tiny.draft, "specialists": str(folder), "max_tokens": 12}
    plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
    assert outpace.generate(model, "def add(a, b):", **given)[0].tokens == plain[0].tokens


def test_a_trained_predictor_of_exits_is_used_by_its_method(model, data, tmp_path) -> None:
    head = str(train("eagle", target=model, data=data, output=tmp_path / "eagle", changes=QUICK).folder)
    run = train("specee", target=model, data=data, output=tmp_path / "exits", head=head, changes=QUICK)
    given = {"method": "specee", "head": head, "predictor": str(run.folder), "max_tokens": 12}
    plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
    drafted = outpace.generate(model, "def add(a, b):", role="drafter", **given)[0]
    assert drafted.tokens == plain[0].tokens and drafted.statistics.num_draft_tokens
    assert outpace.generate(model, "def add(a, b):", **given)[0].reference is not None
    last = run.evaluations[-1]
    assert 0 < last.agreement <= 1 and 0 < last.mean_depth <= last.num_layers == model.target.num_layers
    card = (run.folder / "README.md").read_text()
    assert f"{last.agreement:.1%} of the held-out predictions" in card
    assert "--method specee --head eagle --predictor exits\n" in card and "do not have the target's" in card
    other = train("hass", target=model, data=data, output=tmp_path / "hass", changes=QUICK).folder
    with pytest.raises(
        ValueError,
        match="the predictor was trained for another head: give the models",
    ):
        outpace.generate(model, "def", **given | {"head": str(other)})
    both = {"head": head, "draft": "zoo:draft"}
    for wrong, message in (({}, "specee needs head: a folder"), (both, "a predictor: leave out draft")):
        with pytest.raises(ValueError, match=message):
            train("specee", target=model, data=data, output=tmp_path / "wrong", changes=QUICK, **wrong)


def test_a_head_is_trained_further(model, data, tmp_path) -> None:
    """As HASS does with a head of EAGLE."""
    first = train("eagle", target=model, data=data, output=tmp_path / "eagle", changes=QUICK)
    head, none = str(first.folder), [*QUICK, "steps=0"]
    weights = load_file(first.folder / "model.safetensors")
    for method in ("hass", "eagle"):
        same = train(method, target=model, data=data, output=tmp_path / method / "0", head=head, changes=none)
        found = load_file(same.folder / "model.safetensors")
        assert all(torch.equal(weights[name], found[name]) for name in weights)
        more = train(
            method, target=model, data=data, output=tmp_path / method / "6", head=head, changes=QUICK
        )
        found = load_file(more.folder / "model.safetensors")
        assert not torch.equal(weights["fc.weight"], found["fc.weight"])
    made = train("medusa", target=model, data=data, output=tmp_path / "medusa", changes=QUICK).folder
    again = train(
        "medusa", target=model, data=data, output=tmp_path / "again", head=str(made), changes=none
    ).folder
    first_weights, weights = (load_file(each / "model.safetensors") for each in (made, again))
    assert all(torch.equal(first_weights[name], weights[name]) for name in weights)


def test_runs_of_one_process_may_have_different_precisions(model, data, tmp_path) -> None:
    losses = []
    for number, precision in enumerate(("true", "false", "true")):
        folder, changes = tmp_path / str(number), [*QUICK, f"bfloat16={precision}"]
        train("medusa", target=model, data=data, output=folder, changes=changes)
        losses.append((folder / "work" / "checkpoints" / "log.jsonl").read_text())
    assert losses[0] == losses[2] != losses[1]


def test_fastdraft_is_pretrained_on_texts_and_then_learns_answers(model, tmp_path) -> None:
    path = tmp_path / "texts.jsonl"
    rows = [{"prompt": f"def f{index}", "answer": f"(a, b):\n    return {index}\n"} for index in range(12)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    rest = {"target": model, "data": str(path)}
    changes = [*QUICK, "answers.generate=false"]
    first = train("fastdraft", output=tmp_path / "first", changes=changes, **rest).folder
    second = train("fastdraft", output=tmp_path / "second", draft=str(first), changes=QUICK, **rest).folder
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert before.keys() == after.keys() and any(
        not torch.equal(before[name], after[name]) for name in before
    )
    card = (second / "README.md").read_text()
    assert "\n| 8 | " in card and "and is largest for " in card
    draft = {"method": "speculative-sampling", "draft": str(second), "max_tokens": 4}
    assert outpace.generate(model, "def add(a, b):", **draft)[0].statistics.num_draft_tokens


def test_accuracies_of_ranks_are_those_of_all_held_out_texts() -> None:
    lesson = Mock(PositionHeadLesson, head=Mock())
    # right tokens by depth and rank, and texts by depth, of two batches
    lesson.ranks.side_effect = [
        (torch.tensor([[1.0, 0.0]]), torch.tensor([1])),
        (torch.tensor([[0.0, 2.0]]), torch.tensor([3])),
    ]
    PositionHeadLesson.finish(lesson, [None, None])
    assert lesson.head.rank_accuracies == ((0.25, 0.5),)


def test_a_head_that_drafts_few_tokens_is_trained_and_used(model, data, tmp_path) -> None:
    changes = [*QUICK, "head.draft_vocab=3", "answers.temperatures=0.0", "answers.max_tokens=24"]
    for method in ("medusa", "hydra", "redrafter"):
        folder = train(method, target=model, data=data, output=tmp_path / method, changes=changes).folder
        accuracies = json.loads((folder / "config.json").read_text())["rank_accuracies"]
        assert [len(each) for each in accuracies] == [3] * named(method).defaults().head.num_heads
        plain = outpace.generate(model, "def add(a, b):", method="autoregressive", max_tokens=12)
        found = outpace.generate(model, "def add(a, b):", method=method, head=str(folder), max_tokens=12)
        assert found[0].tokens == plain[0].tokens and found[0].statistics.num_draft_tokens


def test_no_steps_measure_the_ranks_of_heads_from_elsewhere(model, data, tmp_path) -> None:
    theirs = train("medusa", target=model, data=data, output=tmp_path / "theirs", changes=QUICK).folder
    config = json.loads((theirs / "config.json").read_text())
    measured = config.pop("rank_accuracies")
    (theirs / "config.json").write_text(json.dumps(config))
    changes = [*QUICK, "steps=0"]
    ours = train(
        "medusa", target=model, data=data, output=tmp_path / "ours", head=str(theirs), changes=changes
    ).folder
    found = json.loads((ours / "config.json").read_text())["rank_accuracies"]
    # of weights that were rounded when they were written, on the same held-out texts
    assert [len(each) for each in found] == [len(each) for each in measured]
    assert all(each == pytest.approx(other, abs=0.1) for each, other in zip(found, measured, strict=True))
    weights = [load_file(folder / "model.safetensors") for folder in (theirs, ours)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_hidden_states_on_disk_give_the_same_head(model, data, tmp_path) -> None:
    folders = [tmp_path / "computed", tmp_path / "stored", tmp_path / "partly"]
    for folder, size in zip(folders, (0, 1, 5e-5), strict=True):
        changes = [*QUICK, f"capture.disk_gigabytes={size}"]
        train("eagle3", target=model, data=data, output=folder, changes=changes)
    files = [sorted((folder / "work").rglob("0*.safetensors")) for folder in folders]
    assert len(files[0]) == 0 < len(files[2]) < len(files[1])
    used = [file.stat().st_size for file in files[2]]
    assert sum(used) <= 50_000 + 200 * len(used), "beside the headers of the files"
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    for other in weights[1:]:
        for name, each in weights[0].items():
            # weights are stored in bfloat16, with 8 bits
            assert torch.allclose(each.float(), other[name].float(), rtol=2**-7, atol=1e-4)


def test_a_model_with_early_exits_is_loaded_with_the_exit_that_it_was_trained_for(model, tmp_path) -> None:
    train("layerskip", target=model, data="", output=tmp_path, changes=["exits.layer=1"], dry_run=True)
    loaded = outpace.load(tmp_path, dtype="float32")
    assert getattr(loaded.target.model.config, EXIT_LAYER) == drafting_layers(loaded.target) == 1
    assert not hasattr(model.target.model.config, EXIT_LAYER)
    [result] = outpace.generate(loaded, "def f(", "layerskip", max_tokens=12, temperature=0)
    [plain] = outpace.generate(loaded, "def f(", "autoregressive", max_tokens=12, temperature=0)
    [auto] = outpace.generate(loaded, "def f(", "auto", max_tokens=12, temperature=0)
    assert result.tokens == auto.tokens == plain.tokens
    assert (
        auto.statistics.num_draft_tokens > 0
    )  # by the first layers: the first drafts of `auto` are a model's


def test_a_dry_run_writes_an_untrained_head(model, tmp_path) -> None:
    train("eagle3", target=model, data="builtin:code", output=tmp_path, dry_run=True)
    assert not (tmp_path / "work").exists()
    outpace.generate(model, "def", method="eagle3", head=str(tmp_path), max_tokens=4)


def test_a_full_disk_is_named_and_nothing_is_lost(model, data, tmp_path, monkeypatch) -> None:
    def full(tensors, path):
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("outpace.training.features.save_file", full)
    with pytest.raises(DataError, match="do not fit on the disk .* or 0 to compute them in every step"):
        train(
            "eagle3", target=model, data=data, output=tmp_path, changes=[*QUICK, "capture.disk_gigabytes=1"]
        )
    assert not list((tmp_path / "work" / "held-out").iterdir())
    assert list((tmp_path / "work" / "answers").glob("*.json"))


def test_a_loss_that_is_no_number_keeps_the_last_checkpoint(model, data, tmp_path, monkeypatch) -> None:
    from outpace.training.lessons.feature_heads import FeatureHeadLesson

    forward = FeatureHeadLesson.forward
    calls = 0

    def broken(self, batch, noise):
        nonlocal calls
        calls += 1
        return forward(self, batch, noise) * (torch.nan if calls == 4 else 1)

    monkeypatch.setattr(FeatureHeadLesson, "forward", broken)
    with pytest.raises(TrainingError, match="the loss is nan at step 4: the checkpoint of step 2 is kept"):
        train("eagle", target=model, data=data, output=tmp_path, changes=QUICK)
    assert [path.name for path in (tmp_path / "work" / "checkpoints").glob("step-*")] == ["step-0000002"]


def test_another_run_in_the_same_folder_is_refused(model, data, tmp_path) -> None:
    train("eagle", target=model, data=data, output=tmp_path, changes=QUICK)
    with pytest.raises(
        ConfigError, match="made with another seed: give another --output, and --captured .*work"
    ):
        train("eagle", target=model, data=data, output=tmp_path, changes=[*QUICK, "seed=1"])
    # the folder has no answers for this seed
    with pytest.raises(
        ConfigError, match="another data and answers.seed: give another --output, or the same"
    ):
        train("eagle", target=model, data=data, output=tmp_path, changes=[*QUICK, "answers.seed=1"])
    with pytest.raises(ConfigError, match="made with another method"):
        train("hass", target=model, data=data, output=tmp_path, changes=QUICK)
    begun = str(tmp_path / "begun")
    train("eagle", target=model, data=data, output=begun, dry_run=True)
    with pytest.raises(ConfigError, match="made with another start"):
        train("eagle", target=model, data=data, output=tmp_path, changes=QUICK, head=begun)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match="run.json is damaged .*: give another --output"):
        train("eagle", target=model, data=data, output=tmp_path, changes=QUICK)


def test_what_a_folder_holds_is_not_overwritten(model, tiny, data, tmp_path) -> None:
    for folder in (Path(tiny.target), Path(tiny.draft)):
        before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for dry_run in (True, False):
            with pytest.raises(
                ConfigError, match="already holds a model or a drafter: give another --output"
            ):
                train("eagle", target=model, data=data, output=folder, changes=QUICK, dry_run=dry_run)
        assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (tmp_path / "file").write_text("text")
    with pytest.raises(ConfigError, match="file is a file: give a folder as --output"):
        train("eagle", target=model, data=data, output=tmp_path / "file", changes=QUICK)
    # an untrained head may be overwritten, a trained one only by its own run
    for _ in range(2):
        train("eagle3", target=model, data=data, output=tmp_path / "head", dry_run=True)
    train("eagle", target=model, data=data, output=tmp_path / "head", changes=QUICK)
    with pytest.raises(ConfigError, match="holds a trained drafter or a run: give another --output"):
        train("eagle", target=model, data=data, output=tmp_path / "head", dry_run=True)


def test_damaged_checkpoints_are_left_out(model, data, tmp_path) -> None:
    changes = [*QUICK, "save_every=1", "keep=3"]
    whole = train("eagle", target=model, data=data, output=tmp_path, changes=changes).folder
    weights = load_file(whole / "model.safetensors")
    states = sorted((whole / "work" / "checkpoints").glob("step-*/state.pt"))
    assert len(states) == 3
    states[-1].write_bytes(states[-1].read_bytes()[:1000])
    state = torch.load(states[-2], weights_only=True)
    removed = next(iter(state["weights"]))
    state["weights"]["foo"] = state["weights"].pop(removed)
    torch.save(state, states[-2])
    with pytest.warns(UserWarning) as warned:
        train("eagle", target=model, data=data, output=tmp_path, changes=changes)
    messages = [str(each.message) for each in warned if "damaged and left out" in str(each.message)]
    assert len(messages) == 2 and str(states[-1]) in messages[0]
    assert f"missing, unknown or of another shape: {', '.join(sorted(('foo', removed)))}" in messages[1]
    again = load_file(whole / "model.safetensors")
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    for path in (whole / "work" / "checkpoints").glob("step-*/state.pt"):
        path.write_bytes(b"")
    with pytest.raises(TrainingError, match="no checkpoint in .*checkpoints is whole: remove that folder"):
        with pytest.warns(UserWarning, match="damaged and left out"):
            train("eagle", target=model, data=data, output=tmp_path, changes=changes)


def test_weights_that_diverged_are_not_written(model, data, tmp_path) -> None:
    changes = [*QUICK, "steps=1", "optimizer.rate=1e30", "optimizer.warm_up=0"]
    for method in ("eagle", "layerskip"):
        message = "weights of up to .* after step 1: train again into another --output .* --captured .*work"
        with pytest.raises(TrainingError, match=message):
            train(method, target=model, data=data, output=tmp_path / method, changes=changes)
        assert not list((tmp_path / method).glob("*.safetensors"))
        assert not list((tmp_path / method / "work" / "checkpoints").glob("step-*"))


def test_runs_share_answers_and_hidden_states(model, data, tmp_path, monkeypatch) -> None:
    stored, shared = [*QUICK, "capture.disk_gigabytes=1"], tmp_path / "shared"
    for method in ("eagle", "eagle3"):  # which needs more layers
        train(method, target=model, data=data, output=tmp_path / "own" / method, changes=stored)
        train(method, target=model, data=data, output=tmp_path / method, captured=shared, changes=stored)
        first, second = (
            load_file(folder / method / "model.safetensors") for folder in (tmp_path / "own", tmp_path)
        )
        assert all(torch.equal(first[name], second[name]) for name in first)
    # everything is there: the target neither answers nor reads texts
    monkeypatch.setattr("outpace.training.answers._answers", None)
    monkeypatch.setattr(FeatureSource, "_forward", None)
    for method, seed in (("eagle", 1), ("eagle3", 1), ("hass", 0)):
        changes, folder = [*stored, f"seed={seed}"], tmp_path / "other" / method
        train(method, target=model, data=data, output=folder, captured=shared, changes=changes)
    with pytest.raises(ConfigError, match="shared was made with another answers.max_tokens: give another"):
        changes = [*stored, "answers.max_tokens=9"]
        train("eagle", target=model, data=data, output=tmp_path / "c", captured=shared, changes=changes)
    for setting in ("length=24", "held_out=0.4"):
        name = setting.partition("=")[0]
        with pytest.raises(ConfigError, match=f"shared was made with another {name}: give another"):
            changes = [*stored, setting]
            train("eagle", target=model, data=data, output=tmp_path / name, captured=shared, changes=changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 prompts: give at least two"),
        ('{"prompt": "a"}\nnot json', "line 2: not JSON"),
        ('{"text": "a"}', 'line 1: a row has a "prompt" or "messages"'),
        ('{"prompt": "a", "answer": [99999]}', "line 1: the answer"),
        ('{"prompt": "a", "answer": 5}', "line 1: the answer"),
        ('{"prompt": "a", "answer": ""}', "line 1: the answer is empty"),
        ('{"messages": "hi"}', 'line 1: "messages" is a list of objects'),
        ('{"messages": [{"role": "assistant", "content": null}]}', "line 1: the last message has no content"),
    ],
)
def test_data_that_cannot_be_used(text, message, model, tmp_path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_prompts(str(path), model, 10, 0)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="data.jsonl is not UTF-8 text"):
        read_prompts(str(path), model, 10, 0)
    with pytest.raises(DataError, match="there is no data builtin:poems: use builtin:code or a file"):
        read_prompts("builtin:poems", model, 10, 0)
    with pytest.raises(DataError, match="there is no file"):
        read_prompts("missing.jsonl", model, 10, 0)


def test_texts_and_compressed_files_have_several_prompts(model, tmp_path) -> None:
    (tmp_path / "lines.txt").write_text("def one():\n\ndef two():\n")
    (tmp_path / "parts.txt").write_text("a = 1\nb = 2\n---\nc = 3\n")
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write('{"prompt": "a = 1"}\n{"prompt": "c = 3", "answer": " + 4"}\n')
    for name in ("lines.txt", "parts.txt", "rows.jsonl.gz"):
        assert len(read_prompts(str(tmp_path / name), model, 10, 0)) == 2


def test_an_answer_has_no_beginning_of_a_text(model, tmp_path) -> None:
    path, given = tmp_path / "data.jsonl", '{"prompt": "a = 1", "answer": " + 4"}\n'
    path.write_text(2 * given)
    plain = model.tokenizer(" + 4", add_special_tokens=False)["input_ids"]

    class Beginning:
        """The tokenizer with a token before each text, unless it is told to add none."""

        def __call__(self, text, add_special_tokens=True, **options):
            found = model.tokenizer(text, **options)["input_ids"]
            return {"input_ids": [1, *found] if add_special_tokens else found}

    for prompt in read_prompts(str(path), replace(model, tokenizer=Beginning()), 10, 0):
        assert list(prompt.answer) == plain and prompt.tokens[0] == 1


@pytest.mark.parametrize("method", ["layerskip", "kangaroo"])
def test_methods_that_leave_layers_early_are_not_trained_for_recurrent_layers(method: str) -> None:
    target = recurrent_models().target
    assert isinstance(target, HFTarget)
    with pytest.raises(ValueError, match="has recurrent layers, which cannot be skipped: use a method with"):
        named(method).untrained(Model("recurrent", target), TrainConfig())


def test_texts_without_answers_are_refused(model, data, tmp_path) -> None:
    for number, (change, message) in enumerate(
        (
            ("answers.generate=false", "no row of .* has an answer: add answers, or leave answers.generate"),
            ("answers.max_tokens=1", "gives no text of four tokens, three of them answered, to learn from"),
            ("held_out=0.99", "held_out=0.99 leaves none to learn from or none to evaluate"),
        )
    ):
        with pytest.raises(DataError, match=message):
            train("eagle", target=model, data=data, output=tmp_path / str(number), changes=[*QUICK, change])


@pytest.mark.slow
def test_builtin_code_is_source_without_the_held_out_modules(model) -> None:
    prompts = read_prompts("builtin:code", model, 40, 0)
    assert len(prompts) == 40 and prompts == read_prompts("builtin:code", model, 40, 0)
    assert prompts != read_prompts("builtin:code", model, 40, 1)


def test_settings_are_changed_by_dotted_names() -> None:
    config = changed(TrainConfig(), ["steps=7", "optimizer.rate=2e-4", "answers.generate=false"])
    assert (config.steps, config.optimizer.rate, config.answers.generate) == (7, 2e-4, False)
    assert settings(config)["optimizer.rate"] == 2e-4
    for change, message in (
        ("optimiser.rate=1", "there is no setting optimiser.rate; did you mean optimizer.rate"),
        ("optimizer=1", "there is no setting optimizer"),
        ("steps", "steps is no setting: write NAME=VALUE"),
        ("steps=many", "steps is a whole number, not many"),
        ("bfloat16=1", "bfloat16 is true or false, not 1"),
        ("batch=0", "batch is 0: it is at least 1"),
        ("held_out=1.5", "held_out is 1.5: it is a share between 0 and 1"),
        ("answers.batch=0", "answers.batch is 0: it is at least 1"),
        ("head.draft_vocab=-5", "head.draft_vocab is -5: it is at least 0"),
        ("optimizer.rate=nan", "optimizer.rate is nan: it is a number"),
        ("optimizer.rate=0", "optimizer.rate is 0.0: it is above 0"),
        ("distillation.size=-1", "distillation.size is -1.0: it is a share, up to 1"),
        ("distillation.beta=1", "distillation.beta is 1.0: it is between 0 and 1"),
        ("head.dropout=1", "head.dropout is 1.0: it is a share below 1"),
        ("head.top_k_weight=-1", "head.top_k_weight is -1.0: it is at least 0"),
        ("optimizer.clip_by=size", "optimizer.clip_by is size: use norm or value"),
        ("optimizer.decay=step", "optimizer.decay is step: use linear or cosine"),
        ("optimizer.last=2", "optimizer.last is 2.0: it is a share, up to 1"),
        ("head.token_loss=kl", "head.token_loss is kl: use soft_cross_entropy or total_variation or "),
        ("distillation.divergence=kl", "distillation.divergence is kl: use forward_kl or reverse_kl or "),
    ):
        with pytest.raises(ConfigError, match=message):
            changed(TrainConfig(), [change])


def test_heads_have_the_sizes_of_the_papers_and_as_many_steps_as_their_methods_draft() -> None:
    sizes = {method: named(method).defaults().head for method in POSITION_HEADS}
    assert {method: (head.num_heads, head.num_layers) for method, head in sizes.items()} == {
        "medusa": (5, 1),
        "hydra": (4, 4),  # Hydra++
        "mlp-speculator": (3, 1),
        "redrafter": (5, 2),
        "s4c": (5, 1),
    }
    for method, head in sizes.items():
        assert recipes.get(method).options["depth"].default == head.num_heads


def test_the_draft_vocabulary_has_the_most_frequent_tokens_of_the_answers() -> None:
    examples = [Example((9, 9, 9, 4, 4, 4, 7, 7, 1), 3)]
    for size, expected in ((3, [1, 4, 7]), (5, [0, 1, 2, 4, 7])):
        found = draft_vocabulary(examples, 10, size)
        assert found is not None and found.tolist() == expected
    assert draft_vocabulary(examples, 10, 10) is None


def test_long_texts_are_cut_and_pieces_without_answers_dropped() -> None:
    example = Example(tuple(range(20)), 9)
    pieces = list(example.pieces(8))
    assert [(each.tokens[0], len(each.tokens), each.first) for each in pieces] == [(8, 8, 1), (16, 4, 1)]


def test_no_text_is_learned_from_and_evaluated() -> None:
    """The texts have two pieces each, one text comes twice, and the share ends inside a text."""
    texts = [tuple(range(start, start + 16)) for start in (0, 100, 200, 0, 300, 400)]
    learned, evaluated = split_texts([Example(each, 1) for each in texts], 8, 0.3)
    assert [each.tokens[0] for each in evaluated] == [0, 8, 100, 108]
    assert [each.tokens[0] for each in learned] == [200, 208, 300, 308, 400, 408]


def test_the_fingerprint_tells_targets_apart_and_not_dtypes(tiny) -> None:
    found = {
        name: target_fingerprint(outpace.load(path, dtype=dtype).target)
        for name, path, dtype in (
            ("target", tiny.target, "float32"),
            ("half", tiny.target, "bfloat16"),
            ("other", tiny.draft, "float32"),
        )
    }
    assert found["target"] == found["half"] != found["other"]


def test_hidden_states_are_those_of_the_text_alone(model) -> None:
    assert isinstance(model.target, HFTarget)
    texts = [Example((5, 6, 7, 8, 9, 10), 1), Example((11, 12, 13), 1)]
    source = FeatureSource(model.target, texts, (-1, 0), Path("none"))
    both = source.batch([0, 1])
    for row in (0, 1):
        alone = source.batch([row])
        size = alone.tokens.shape[1]
        for layer in (-1, 0):
            assert (both.hidden[layer][row, :size] - alone.hidden[layer][0]).abs().max() < 1e-5
    assert both.learns.tolist() == [[False, *[True] * 5], [False, True, True, False, False, False]]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_heads_are_trained_for_a_target_with_recurrent_layers(method, tmp_path) -> None:
    model = Model("recurrent", recurrent_models().target)
    rows = [{"prompt": [index % 4, 1, index // 4]} for index in range(12)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = train(
        method, target=model, data=str(tmp_path / "data.jsonl"), output=tmp_path / "head", changes=QUICK
    )
    assert found.num_tokens > 0
    texts = [
        outpace.generate(model, [[0, 1, 2]], name, max_tokens=12, temperature=0, **options)[0]
        for name, options in (("autoregressive", {}), (method, {"head": str(tmp_path / "head")}))
    ]
    assert texts[0].tokens == texts[1].tokens and texts[1].statistics.num_draft_tokens > 0
