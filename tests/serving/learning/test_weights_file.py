"""Learned weights in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outpace.drafters.learning.online_adam import Weights
from outpace.serving.learning import weights_file
from outpace.serving.learning.weights_file import NAME, Learned, load, save

DRAFTER = {"method": "online-sd", "target": "some-model", "draft": "a-draft"}
WEIGHTS: Weights = (torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.float64))


def test_weights_are_those_that_were_saved(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert load(folder, DRAFTER, WEIGHTS) is None
    save(folder, Learned(DRAFTER, 7, WEIGHTS))
    save(folder, Learned(DRAFTER, 8, WEIGHTS))
    found = load(folder, DRAFTER, tuple(each * 0 for each in WEIGHTS))
    assert found is not None and found.version == 8 and found.drafter == DRAFTER
    assert all(map(torch.equal, found.weights, WEIGHTS))
    assert [each.dtype for each in found.weights] == [torch.float32, torch.float64]
    assert [path.name for path in folder.iterdir()] == [NAME]


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def foreign(path: Path) -> None:
    save_file({"0": torch.ones(2)}, path)


def of_another(path: Path) -> None:
    save(path.parent, Learned(DRAFTER | {"draft": "another"}, 1, WEIGHTS))


def larger(path: Path) -> None:
    save(path.parent, Learned(DRAFTER, 1, (torch.ones(2, 4), WEIGHTS[1])))


def fewer(path: Path) -> None:
    save(path.parent, Learned(DRAFTER, 1, WEIGHTS[:1]))


def not_finite(path: Path) -> None:
    save(path.parent, Learned(DRAFTER, 1, (WEIGHTS[0] / 0, WEIGHTS[1])))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (damaged, "holds no learned weights"),
        (foreign, "holds no learned weights"),
        (
            of_another,
            "target some-model, draft another, not by method online-sd",
        ),
        (larger, "other sizes"),
        (fewer, "other sizes"),
        (not_finite, "no finite numbers"),
    ],
)
def test_other_files_are_refused_and_stay(
    change: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    save(tmp_path, Learned(DRAFTER, 1, WEIGHTS))
    change(tmp_path / NAME)
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(ValueError, match=f"{sentence}.*move the file away"):
        load(tmp_path, DRAFTER, WEIGHTS)
    assert (tmp_path / NAME).read_bytes() == before


def test_a_full_disk_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, Learned(DRAFTER, 1, WEIGHTS))

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"a half")
        raise weights_file.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights_file, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, Learned(DRAFTER, 2, WEIGHTS))
    found = load(tmp_path, DRAFTER, WEIGHTS)
    assert found is not None and found.version == 1
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    save(tmp_path, Learned(DRAFTER, 1, WEIGHTS))
    (tmp_path / f"{NAME}.123.partial").write_bytes(b"a half")
    assert load(tmp_path, DRAFTER, WEIGHTS) is not None
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    weights_file.check_writable(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to.*give another folder"):
        weights_file.check_writable(tmp_path / "file" / "below")
