"""Building a model of the package from text to checkpoint, in a few training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from transformers import AutoTokenizer
from typer.testing import CliRunner

import outpace
from zoo_training import __main__ as command
from zoo_training import build, cards, evaluate
from zoo_training.corpus import Corpus
from zoo_training.models import VOCABULARIES
from zoo_training.tokenizer import BYTES, SPECIAL, VOCABULARY, train_tokenizer

SOURCE = "".join(
    f"def function_{i}(left, right):\n    return left[{i}] + right  # naïve\n\n\n" for i in range(60)
)
OWN = [name for name, size in VOCABULARIES.items() if size != VOCABULARY]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little text, few tasks, and nothing that takes long to measure."""
    monkeypatch.setattr(
        build, "read_corpus", lambda: Corpus((SOURCE, SOURCE[::-1]), (SOURCE,), ("a.py", "b.py"), "0" * 64)
    )
    for name in ("TOKENIZER_TASKS", "COUNTED_TASKS"):
        monkeypatch.setattr(build, name, 5)
    for name in ("losses", "accuracy", "repetition"):
        monkeypatch.setattr(evaluate, name, lambda *_: {"code": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_draft_with_its_own_tokens_needs_no_target(
    small: None, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert build.build(name, tmp_path, steps=2) == tmp_path / name
    card = cards.read_card(tmp_path / name)
    assert (card["name"], card["steps"], card["command"]) == (
        name,
        2,
        f"python -m zoo_training {name} --steps 2 --seed 0 --device cpu",
    )
    assert "pair" not in card and card["parameters"] <= 1_000_000
    assert "spells" in (tmp_path / name / "README.md").read_text(encoding="utf-8")
    words = AutoTokenizer.from_pretrained(tmp_path / name)
    assert len(words) == card["vocabulary"] <= VOCABULARIES[name]
    assert (tmp_path / f"tokenizer-{VOCABULARIES[name]}").is_dir() and not (tmp_path / "tokenizer").exists()

    for place in ("outpace.zoo.WEIGHTS", "outpace.models.names.WEIGHTS"):
        monkeypatch.setattr(place, tmp_path)
    assert outpace.zoo.names() == [name] and outpace.zoo.card(name) == card
    for method in ("tli", "slrs", "slem", "omnidraft"):
        found = outpace.generate(tiny.target, "def", method, draft=f"zoo:{name}", max_tokens=5, temperature=1)
        assert found[0].tokens


def test_bytes_are_the_smallest_vocabulary() -> None:
    words = train_tokenizer([SOURCE], BYTES)
    assert len(words) == BYTES == len(SPECIAL) + 256
    assert len(words("naïve 漢字")["input_ids"]) == len("naïve 漢字".encode())
    assert evaluate.bytes_per_token((SOURCE,), words) == 1


def test_an_unknown_model_gives_the_list_of_models(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="target, draft, draft-undistilled, draft-2k, draft-bytes"):
        build.build("giant", tmp_path)


def test_the_command_passes_its_options_on(monkeypatch, tmp_path):
    builds = []
    monkeypatch.setattr(
        command, "build", lambda name, out, **how: builds.append((name, out.name, how)) or out / name
    )
    app = typer.Typer()
    app.command()(command.main)
    result = CliRunner().invoke(app, ["zoo:target", "--out", str(tmp_path / "made"), "--steps", "3"])
    assert result.exit_code == 0 and "is ready" in result.output
    assert [(name, out) for name, out, _ in builds] == [("target", "made")] and builds[0][2]["steps"] == 3
