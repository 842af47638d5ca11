"""`outpace train` on the command line."""

from __future__ import annotations

import json
import sys

import pytest

QUICK = [
    part
    for change in (
        "steps=2 batch=2 texts=6 held_out=0.2 length=32 answers.max_tokens=8 answers.batch=3 head.unroll=1"
    ).split()
    for part in ("--set", change)
]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"def f{index}(a):"}) for index in range(8)))
    return path


def test_a_head_is_trained_and_benched(outpace_, tiny, data, tmp_path):
    head = tmp_path / "head"
    result = outpace_(
        "train", "eagle3", "--target", tiny.target, "--data", data, "-o", head, "--dtype", "float32", *QUICK
    )
    assert result.exit_code == 0, result.output
    assert "held-out acceptance length of greedy chains" in result.stderr
    assert f"--method eagle3 --head {head}" in result.stderr
    report = tmp_path / "report.json"
    result = outpace_(
        "bench",
        "--target",
        tiny.target,
        "--methods",
        f"autoregressive,eagle3:head={head}",
        "--prompts",
        data,
        "--num-prompts",
        1,
        "--max-tokens",
        8,
        "--rounds",
        1,
        "--temperature",
        0,
        "--dtype",
        "float32",
        "--output",
        report,
    )
    assert result.exit_code == 0, result.output


def test_a_missing_accelerate_is_named_before_the_target_is_loaded(outpace_, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "accelerate", None)  # as if it were not installed
    result = outpace_("train", "eagle3", "--target", "./nothing-here", "-o", tmp_path / "head")
    assert result.exit_code == 2 and "training needs accelerate: pip install" in result.stderr


@pytest.mark.slow
def test_what_cannot_be_trained_is_said_in_one_sentence(outpace_, tiny, data, tmp_path):
    arguments = ("--target", tiny.target, "--data", data, "-o", tmp_path / "head")
    for more, message in (
        (("poetry",), "poetry has no drafter to train: use chimera, coral, dart, dflash, dovetail"),
        (("eagle3", "--set", "stepps=3"), "there is no setting stepps; did you mean steps"),
        (("distillspec",), "distillspec needs draft: the model to train"),
        (("fastdraft", "--head", tmp_path), "fastdraft trains a draft model: leave out head"),
        (("specdec-pp",), "specdec-pp needs draft: the model whose tokens it learns to judge"),
        (
            ("specdec-pp", "--draft", tiny.stranger),
            "vocabularies of 304 and 320 tokens but not the same tokens",
        ),
        (("specdec-pp", "--draft", "d", "--head", tmp_path), "specdec-pp trains a predictor: leave out head"),
        (("disco",), "disco needs draft: the model whose tokens it learns to judge"),
        (("eagle", "--set", "predictor.mix=1"), "predictor.mix is 1.0: it is a share below 1"),
        (("medusa", "--head", tmp_path / "none"), "there is no folder"),
        (("medusa", "--draft", tiny.draft), "medusa trains a head: leave out draft"),
        (("s2d",), "s2d needs draft: the model to train"),
        (("s2d", "--draft", tiny.draft, "--set", "exits.layers=2,3"), "the exits are 2,3: give increasing"),
        (
            ("s2d", "--draft", tiny.draft, "--set", "exits.layers=a"),
            "exits.layers is a list of numbers, not a",
        ),
        (("kangaroo", "--set", "exits.layer=2"), "exits.layer is 2: a target of 2 layers has exits 1 to 1"),
        (("adaspec", "--draft", tiny.stranger), "vocabularies of 304 and 320 tokens but not the same tokens"),
        (("adaspec", "--draft", tiny.lookalike), "have vocabularies of one size but not the same tokens"),
        (("fastdraft", "--set", "distillation.keep=2"), "distillation.keep is a share between 0 and 1"),
    ):
        result = outpace_("train", *more, *arguments)
        assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr


def test_a_draft_model_is_trained_and_used(outpace_, tiny, data, tmp_path):
    draft, common = tmp_path / "draft", ("--target", tiny.target, "--dtype", "float32")
    result = outpace_(
        "train", "distillspec", "--draft", tiny.draft, "--data", data, "-o", draft, *common, *QUICK
    )
    assert result.exit_code == 0, result.output
    assert f"--method speculative-sampling --draft {draft}" in result.stderr
    arguments = ("generate", "def", "--method", "speculative-sampling", "--draft", draft, "--max-tokens", 4)
    assert outpace_(*arguments, *common).exit_code == 0


def test_a_predictor_is_trained_and_its_quality_reported(outpace_, tiny, data, tmp_path):
    folder, common = tmp_path / "predictor", ("--target", tiny.target, "--dtype", "float32")
    result = outpace_(
        "train", "specdec-pp", "--draft", tiny.draft, "--data", data, "-o", folder, *common, *QUICK
    )
    assert result.exit_code == 0, result.output
    for words in ("held-out rejections are foreseen with F1 0.", "held-out calibration error 0."):
        assert words in result.stderr
    used = ("--method", "specdec-pp", "--draft", tiny.draft, "--predictor", folder)
    assert " ".join(map(str, used)) in result.stderr
    assert outpace_("generate", "def", *used, "--max-tokens", 4, *common).exit_code == 0


def test_a_predictor_of_draft_lengths_is_trained_and_used(outpace_, tiny, data, tmp_path):
    folder, head = tmp_path / "predictor", tmp_path / "head"
    common = ("--target", tiny.target, "--dtype", "float32")
    assert outpace_("train", "eagle", "--dry-run", "-o", head, *common).exit_code == 0
    result = outpace_(
        *("train", "adaeagle", "--head", head, "--data", data, "-o", folder, *common, *QUICK),
        *("--set", "predictor.depth=3"),
    )
    assert result.exit_code == 0, result.output
    assert "tokens too long or too short in the mean" in result.stderr
    used = ("--method", "adaeagle", "--head", head, "--predictor", folder)
    assert " ".join(map(str, used)) in result.stderr
    assert outpace_("generate", "def", *used, "--max-tokens", 4, *common).exit_code == 0


def test_a_predictor_of_rollbacks_is_trained_and_used(outpace_, tiny, data, tmp_path):
    folder, common = tmp_path / "predictor", ("--target", tiny.target, "--dtype", "float32")
    result = outpace_(
        *("train", "specbranch", "--draft", tiny.draft, "--data", data, "-o", folder, *common, *QUICK),
        *("--set", "predictor.depth=3"),
    )
    assert result.exit_code == 0, result.output
    assert "of the held-out predictions are right" in result.stderr
    used = ("--method", "specbranch", "--draft", tiny.draft, "--predictor", folder)
    assert " ".join(map(str, used)) in result.stderr
    assert outpace_("generate", "def", *used, "--max-tokens", 4, *common).exit_code == 0


def test_settings_are_listed(outpace_):
    result = outpace_("train", "eagle3", "-o", "nowhere", "--show-settings")
    assert "optimizer.rate=0.001" in result.stdout and "answers.generate=true" in result.stdout
    assert "answers.temperatures=0.0,1.0" in result.stdout and "head.unroll=" in result.stdout
    for other in ("distillation.", "growth.", "predictor.", "exits."):  # of other methods
        assert f"\n{other}" not in result.stdout
    result = outpace_("train", "disco", "-o", "nowhere", "--show-settings")
    assert "optimizer.rate=0.01" in result.stdout and "predictor.depth=20" in result.stdout
    assert "\nhead." not in result.stdout
    result = outpace_("train", "direct-alignment", "-o", "nowhere", "--show-settings")
    assert (
        "optimizer.rate=0.0003" in result.stdout and "answers.temperatures=0.0,0.3,0.7,1.0" in result.stdout
    )


def test_a_folder_that_is_no_head(outpace_, tiny, tmp_path):
    generate = ("generate", "def", "--target", tiny.target, "--method", "eagle3", "--head")
    result = outpace_(*generate, tmp_path)
    assert result.exit_code == 2 and f"{tmp_path} is empty" in result.stderr
    result = outpace_("train", "eagle", "--target", tiny.target, "-o", tmp_path / "e", "--dry-run")
    assert result.exit_code == 0
    result = outpace_(*generate, tmp_path / "e")
    assert result.exit_code == 2 and "holds a head of eagle: use it with the method eagle" in result.stderr
    result = outpace_(*generate[:-1])
    assert result.exit_code == 2 and "eagle3 needs head: a folder with a draft head" in result.stderr
