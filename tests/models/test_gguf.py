"""GGUF files load as the models that they were written from; others are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import outpace
from outpace.models.checkpoint import load_checkpoint, load_tokenizer
from outpace.models.names import resolve
from tests.models.gguf_file import write_gguf

PROMPT = "def area(width, height):\n    return"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "draft.gguf"
    write_gguf(resolve("zoo:draft"), path)
    return path


def test_a_file_generates_what_its_folder_does(file: Path) -> None:
    texts = [
        outpace.generate(outpace.load(name, dtype="float32"), PROMPT, max_tokens=24)[0]
        for name in (str(file), "zoo:draft")
    ]
    assert texts[0].tokens == texts[1].tokens and texts[0].text == texts[1].text
    ids = load_tokenizer(resolve("zoo:draft"))(PROMPT)["input_ids"]
    assert load_tokenizer(str(file))(PROMPT)["input_ids"] == ids


@pytest.mark.slow
def test_a_file_drafts_for_a_file(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "target.gguf"
    write_gguf(resolve("zoo:target"), path)
    target = outpace.load(path, dtype="float32")
    (found,) = outpace.generate(target, PROMPT, "speculative-sampling", draft=str(file), max_tokens=16)
    assert found.tokens == outpace.generate("zoo:target", PROMPT, max_tokens=16)[0].tokens
    assert found.statistics.num_steps < 16


@pytest.mark.slow
def test_unsuited_files_are_refused(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = file.read_bytes()
    for name, content, message in (
        ("cut", whole[:20000], "cut short or no GGUF file"),
        ("late", whole[: len(whole) // 2], "cut short or no GGUF file"),
        ("other", b"hello", "cut short or no GGUF file"),
        ("unknown", whole.replace(b"llama", b"lxxma"), "architecture lxxma is not supported"),
    ):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            load_checkpoint(str(path), device="cpu")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no file"):
        load_checkpoint(str(tmp_path / "absent.gguf"))
    monkeypatch.setattr("outpace.models.checkpoint.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"outpace\[gguf\]"):
        load_checkpoint(str(file))
