"""`outpace export`: every kind of head and a draft model, for every engine, is written so that it loads
again, or refused in a sentence. tests/vllm runs the command for vLLM."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import outpace
from outpace.api.engines import ENGINES
from outpace.api.export import export
from outpace.api.model import Model
from outpace.models.heads.draft_head import head_config
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.kinds import head_kind, head_kinds
from outpace.models.heads.medusa.head import MedusaHead
from outpace.models.heads.position_head import random_parameters

RUNS = {
    "vllm": {"dflash", "dspark", "eagle", "eagle3", "medusa", "p-eagle"},
    "sglang": {"dflash", "dspark", "eagle", "eagle3"},
}
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


@pytest.fixture(scope="module")
def target(tiny: Any) -> Model:
    return outpace.load(tiny.target, dtype="float32")


def without_bias(target: Model) -> EagleHead:
    """An EAGLE head as outpace trains them."""
    own = target.target
    return EagleHead(head_config(own, own.vocab), own.embed, own.head, bias=False)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [kind.method for kind in head_kinds()])
def test_a_head_is_written_for_an_engine_or_refused(
    method: str, engine: str, target: Model, tmp_path: Path
) -> None:
    head: Any = without_bias(target) if method == "eagle" else head_kind(method).untrained(target.target, 0)
    save_head(head, tmp_path / "head", target.target)
    if engine in RUNS and method not in RUNS[engine]:
        with pytest.raises(
            ValueError, match=f"{TITLES[engine]} does not run heads of .*: export for"
        ) as error:
            export(str(tmp_path / "head"), engine=engine, target=target, output=tmp_path / "out")
        assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
        return
    command = export(str(tmp_path / "head"), engine=engine, target=target, output=tmp_path / "out")
    assert str(tmp_path / "out") in command and target.name in command
    again = load_head(method, tmp_path / "out", target.target)
    for name, parameter in head.own.items():
        assert torch.equal(again.own[name], parameter), name
    if engine == "vllm":
        *_, config = shlex.split(command)
        name = json.loads(config)["method"]
        assert name == {"p-eagle": "eagle3"}.get(method, method)
        assert json.loads(config).get("parallel_drafting", False) == (method == "p-eagle")
        count = json.loads(config)["num_speculative_tokens"]
        assert count == head.block_levels if method in ("dflash", "dspark") else count <= 5
    if engine == "sglang":
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        known = ("DFlashDraftModel", "Qwen3DSparkModel", "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3")
        assert config["architectures"][0] in known


@pytest.mark.parametrize("engine", ENGINES)
def test_a_draft_model_is_written_for_every_engine(
    engine: str, tiny: Any, target: Model, tmp_path: Path
) -> None:
    command = export(tiny.draft, engine=engine, target=target, output=tmp_path / "out")
    assert str(tmp_path / "out") in command
    assert {"vllm": '"draft_model"', "sglang": "STANDALONE"}.get(engine, "assistant_model") in command
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(tiny.draft, dtype=torch.float32).state_dict()
    assert all(torch.equal(again.state_dict()[name], each) for name, each in before.items())
    modes = {file.stat().st_mode for file in (tmp_path / "out").glob("[cm]o*") if file.is_file()}
    assert len(modes) == 1  # the weights are as readable as the configuration


def test_a_draft_model_that_fills_masks_is_told_to(tiny: Any, target: Model, tmp_path: Path) -> None:
    draft = AutoModelForCausalLM.from_pretrained(tiny.draft)
    draft.config.pard_token = 3
    draft.save_pretrained(tmp_path / "draft")
    target.tokenizer.save_pretrained(tmp_path / "draft")
    command = export(str(tmp_path / "draft"), engine="vllm", target=target, output=tmp_path / "out")
    assert json.loads(shlex.split(command)[-1])["parallel_drafting"]


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_the_program_for_transformers_runs(
    method: str, target: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_head(head_kind(method).untrained(target.target, 0), tmp_path / "head", target.target)
    program = export(str(tmp_path / "head"), engine="transformers", target=target, output=tmp_path / "out")
    exec(program.replace("max_new_tokens=64", "max_new_tokens=8"), {})
    assert capsys.readouterr().out.startswith("def add(a, b):")


def test_the_program_with_a_draft_model_runs(
    tiny: Any, target: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = export(tiny.draft, engine="transformers", target=target, output=tmp_path / "out")
    exec(program.replace("max_new_tokens=64", "max_new_tokens=8"), {})
    assert capsys.readouterr().out.startswith("def add(a, b):")


def test_an_eagle_head_gets_the_bias_that_sglang_reads(target: Model, tmp_path: Path) -> None:
    save_head(without_bias(target), tmp_path / "head", target.target)
    head = head_kind("eagle").untrained(target.target, 0)
    assert isinstance(head, EagleHead) and head.fc.bias is not None
    head.fc.bias.data.fill_(0.5)
    save_head(head, tmp_path / "bias", target.target)
    for source, value in (("head", 0.0), ("bias", 0.5)):
        export(str(tmp_path / source), engine="sglang", target=target, output=tmp_path / f"{source}-out")
        again = load_head("eagle", tmp_path / f"{source}-out", target.target)
        assert isinstance(again, EagleHead) and set(again.fc.bias.tolist()) == {value}
    with pytest.raises(ValueError, match="its fc has a bias, which vLLM's lacks"):
        export(str(tmp_path / "bias"), engine="vllm", target=target, output=tmp_path / "other")


def test_what_an_engine_would_run_wrongly_is_refused(target: Model, tmp_path: Path) -> None:
    reduced = random_parameters(MedusaHead(target.target, 2, draft_ids=torch.arange(9)))
    save_head(reduced, tmp_path / "reduced", target.target)
    with pytest.raises(
        ValueError, match="it drafts a part of the vocabulary: train it with head.draft_vocab=0"
    ):
        export(str(tmp_path / "reduced"), engine="vllm", target=target, output=tmp_path / "out")
    with pytest.raises(ValueError, match="SGLang ignores norm_before_residual"):
        zoo = outpace.load("zoo:target", dtype="float32")
        export("zoo:eagle3", engine="sglang", target=zoo, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_mistakes_are_named(tiny: Any, target: Model, tmp_path: Path) -> None:
    full, predictor = tmp_path / "full", tmp_path / "predictor"
    for folder in (full, predictor):
        folder.mkdir()
        (folder / "config.json").write_text('{"outpace_predictor": "disco"}')
    for drafter, engine, output, words in (
        (tiny.draft, "tgi", "out", "there is no engine tgi: --engine takes vllm, sglang, transformers"),
        (tiny.draft, "vllm", "full", "is not empty: give another --output"),
        (str(predictor), "vllm", "out", "holds a predictor for disco, which no other engine reads"),
        (tiny.stranger, "vllm", "out", "vocabular"),
    ):
        with pytest.raises(ValueError, match=words):
            export(str(drafter), engine=engine, target=target, output=tmp_path / output)
    other = replace(outpace.load(tiny.draft, dtype="float32"), name="other")
    save_head(head_kind("eagle").untrained(other.target, 0), tmp_path / "head", other.target)
    with pytest.raises(ValueError, match="was trained for another target"):
        export(str(tmp_path / "head"), engine="vllm", target=target, output=tmp_path / "out")
