"""Model cards, and runs that several processes share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outpace.training.card import PAPERS, card, memory_bound_speedups
from outpace.training.drafters import METHODS
from outpace.training.trainer import Evaluation

FACTS = {
    "target_name": "org/target",
    "data_name": "prompts.jsonl",
    "texts": 7,
    "tokens": 900,
    "config": {"answers": {"generate": True, "temperatures": [0.0, 1.0]}},
    "versions": {"outpace": "1", "torch": "2", "transformers": "5"},
}


def test_the_memory_bound_speedup_of_a_chain() -> None:
    assert memory_bound_speedups([0.5, 0.25], 0.1) == pytest.approx([1.5 / 1.1, 1.75 / 1.2])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_card(method: str) -> None:
    text = card("mine", FACTS | {"method": method}, [Evaluation(3, 0.4, 1.75, (0.5, 0.25))], (20, 100))
    assert text.startswith('---\nbase_model: "org/target"\n') and f"arXiv:{PAPERS[method][1]}" in text
    assert "| 2 | 25.0% | 1.75 | 1.25 |" in text and "probability 0.400" in text
    assert "--draft mine" in text or f"--method {method} --head mine" in text
    assert "temperatures 0, 1" in text and "20.0% of the target's" in text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle3", "distillspec"])
def test_two_processes_train_one_drafter(method: str, tiny, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": f"def f{index}(a):"}) for index in range(8)))
    folder = tmp_path / "out"
    changes = "steps=3 batch=2 texts=6 held_out=0.2 length=32 answers.max_tokens=8 answers.batch=3"
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"),
        *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "-m"),
        *("outpace", "train", method, "--target", tiny.target, "--data", data, "--output", folder),
        *(["--draft", tiny.draft] if method == "distillspec" else []),
        *(part for change in changes.split() for part in ("--set", change)),
        *("--dtype", "float32", "--threads", "1"),
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (folder / "work" / "checkpoints" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert (folder / "model.safetensors").exists() and (folder / "README.md").exists()
