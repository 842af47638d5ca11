"""Drafters of the zoo's target: what is trained, in which order and from what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors import safe_open

import outpace
from outpace import zoo
from outpace.models.heads.formats.files import read_files, write_files
from outpace.training.config import changed
from outpace.training.methods import named
from outpace.training.run import train
from tests.training.families import METHODS
from zoo_training import drafters
from zoo_training.corpus import read_corpus


@pytest.fixture
def runs(monkeypatch) -> list:
    found = []

    def train(method, *, output: Path, changes, **given):
        found.append(
            (
                method,
                output.name,
                given["head"],
                given["captured"],
                changed(named(method).defaults(), changes),
            )
        )
        output.mkdir(parents=True)
        (output / drafters.CARD).write_text(f"{method} --head {output.name}\n")
        (output / drafters.PROVENANCE).write_text(json.dumps({"method": method, "start": given["head"]}))
        weights = {"fc.weight": torch.ones(2), "embed_tokens.weight": torch.ones(3)}
        write_files(output, {"method": method}, weights)

    monkeypatch.setattr(drafters, "train", train)
    monkeypatch.setattr(drafters.outpace, "load", lambda name, **_: name)
    monkeypatch.setattr(
        drafters, "write_prompts", lambda path, number, seed, kinds: path.write_text(f"{number} {seed}")
    )
    return found


def test_each_drafter_is_trained_once_after_the_one_it_begins_with(runs, tmp_path) -> None:
    drafters.main(["hass", "eagle", "draft"], tmp_path, seed=2, threads=1, install=False)
    folders = [(method, name, head) for method, name, head, _, _ in runs]
    assert folders == [
        ("eagle", "eagle-2", None),
        ("hass", "hass-first-2", str(tmp_path / "eagle-2")),
        ("hass", "hass-second-2", str(tmp_path / "hass-first-2")),
        ("hass", "hass-third-2", str(tmp_path / "hass-second-2")),
        ("hass", "hass-2", str(tmp_path / "hass-third-2")),
        ("distillspec", "draft-2", None),
    ]
    assert [(captured.name, config.texts) for *_, captured, config in runs] == [
        ("captured-3000", 3000),
        ("captured-3000", 3000),
        ("captured-12000-compiled", 12_000),
        ("captured-12000-compiled", 12_000),
        ("captured-24000-compiled", 24_000),
        ("captured-3000", 3000),
    ]
    written = {path.stem: path.read_text() for path in tmp_path.glob("*.jsonl")}
    assert written == {
        "prompts-3000": "3000 0",
        "prompts-12000": "12000 0",
        "prompts-24000": "24000 1",
    }
    drafters.main(["layerskip"], tmp_path, seed=0, threads=1, install=False)
    assert runs.pop()[3] == tmp_path / "layerskip" / "work"
    assert all(config.seed == 2 and config.answers.seed == 0 for *_, config in runs)
    drafters.main(["hass"], tmp_path, seed=2, threads=1, install=False)
    assert len(runs) == 6


def test_only_heads_are_installed(runs, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(drafters, "HEADS", tmp_path / "heads")
    names = ["medusa", "hass-first", "hass", "draft"]
    drafters.main(names, tmp_path / "out", seed=0, threads=1, install=True)
    assert sorted(path.name for path in (tmp_path / "heads").iterdir()) == ["hass", "medusa"]
    for name, start in (("medusa", None), ("hass", "hass-third")):  # no folder of this machine
        place = tmp_path / "heads" / name
        config, weights = read_files(place)
        assert config == {"method": name} and list(weights) == ["fc.weight"]
        assert (place / drafters.CARD).read_text() == f"{name} --head zoo:{name}\n"
        assert json.loads((place / drafters.PROVENANCE).read_text()) == {"method": name, "start": start}
    with pytest.raises(typer.BadParameter, match="there is no drafter lion"):
        drafters.main(["lion"], tmp_path, seed=0, threads=1, install=False)


def test_weights_of_heads_are_rounded_to_the_closest_of_six_bits() -> None:
    given = torch.tensor([0.0, 1.0, -63.0, 126.5, 129.0, 131.0, 0.1, -3e-30], dtype=torch.bfloat16)
    found = drafters.coarser(given)
    assert found.dtype == given.dtype
    assert found[:6].tolist() == [0.0, 1.0, -63.0, 126.0, 128.0, 132.0]
    assert ((found - given).abs() <= given.abs() / 64).all()
    assert torch.equal(drafters.coarser(found), found)


@pytest.mark.slow
def test_an_adapter_is_installed_with_a_card_of_the_changed_target(tmp_path, monkeypatch) -> None:
    """Of the target's own losses: the low-rank changes have no effect yet."""
    monkeypatch.setattr(drafters.evaluate, "NUM_TASKS", 1)
    monkeypatch.setattr(drafters.evaluate, "CODE_ROWS", 1)
    monkeypatch.setattr(drafters.evaluate, "accuracy", lambda model, tokenizer: {"edit": 0.0})
    target = outpace.load("zoo:target", dtype="float32")
    folder, place = tmp_path / "trained", tmp_path / "package" / "layerskip"
    train("layerskip", target=target, data="", output=folder, changes=("exits.rank=2",), dry_run=True)
    (folder / drafters.CARD).write_text("card")
    (folder / drafters.PROVENANCE).write_text(json.dumps({"steps": 5}))
    drafters.install_adapter(folder, place)
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors", "card.json"}
    assert {path.name for path in place.iterdir()} == files
    card = json.loads((place / "card.json").read_text())
    assert (card["name"], card["vocabulary"], card["training"]) == ("layerskip", 4096, {"steps": 5})
    assert card["parameters"] == zoo.card("target")["parameters"]
    model: Any = target.target.model
    expected = drafters.evaluate.losses(model, read_corpus().held_out, target.tokenizer)
    assert card["held_out_loss"] == pytest.approx(expected, abs=1e-4)


def test_an_adapter_of_a_lower_rank_keeps_the_largest_singular_values() -> None:
    torch.manual_seed(0)
    left, right = torch.linalg.qr(torch.randn(9, 4))[0], torch.linalg.qr(torch.randn(7, 4))[0]
    values = torch.tensor([4.0, 3.0, 2.0, 1.0])
    weights = {"x.lora_A.weight": right.T.contiguous(), "x.lora_B.weight": left * values}
    for rank in (2, 4):
        found = drafters.of_rank(rank, weights)
        assert found["x.lora_A.weight"].shape == (rank, 7) and found["x.lora_B.weight"].shape == (9, rank)
        expected = (left[:, :rank] * values[:rank]) @ right[:, :rank].T
        assert (found["x.lora_B.weight"] @ found["x.lora_A.weight"] - expected).abs().max() < 1e-5


def test_every_drafter_has_a_method() -> None:
    assert {plan.method for plan in drafters.DRAFTERS.values()} <= set(METHODS)


@pytest.mark.slow
def test_a_short_run_gives_a_head(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(drafters, "COMMON", ("batch=2", "answers.max_tokens=12", "evaluate_every=2"))
    plan = drafters.Plan("medusa", ("steps=2", "head.draft_vocab=64"), prompts=8)
    monkeypatch.setitem(drafters.DRAFTERS, "medusa", plan)
    folder = drafters.train_drafter("medusa", tmp_path, 0)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.keys()
