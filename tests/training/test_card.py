"""Model cards, and runs that several processes share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outpace.training.card import card, memory_bound_speedups
from outpace.training.evaluation import (
    ClassifierEvaluation,
    DrafterEvaluation,
    LengthEvaluation,
    PredictorEvaluation,
)
from outpace.training.methods import named
from tests.training.families import (
    ACCEPTANCE_PREDICTORS,
    HEAD_PREDICTORS,
    JUDGES,
    METHODS,
    PLANNERS,
    ROLLBACK_PREDICTORS,
    TARGETS,
    TRUST_PREDICTORS,
)

FACTS: dict[str, Any] = {
    "target_name": "org/target",
    "data_name": "prompts.jsonl",
    "texts": 7,
    "tokens": 900,
    "config": {
        "answers": {"generate": True, "temperatures": [0.0, 1.0]},
        "head": {"draft_vocab": 0, "num_heads": 2},
    },
    "versions": {"outpace": "1", "torch": "2", "transformers": "5"},
}


def test_the_memory_bound_speedup_of_a_chain() -> None:
    assert memory_bound_speedups([0.5, 0.25], 0.1) == pytest.approx([1.5 / 1.1, 1.75 / 1.2])


OTHERS = (
    *(*ACCEPTANCE_PREDICTORS, *JUDGES, *TRUST_PREDICTORS, *ROLLBACK_PREDICTORS),
    *(*HEAD_PREDICTORS, *PLANNERS, *TARGETS),
)


@pytest.mark.parametrize("method", [each for each in METHODS if each not in OTHERS])
def test_every_method_has_a_card(method: str) -> None:
    text = card("mine", FACTS | {"method": method}, [DrafterEvaluation(3, 0.4, 1.75, (0.5, 0.25))], (20, 100))
    assert text.startswith('---\nbase_model: "org/target"\n') and f"arXiv:{named(method).paper}" in text
    # heads for single positions are read once per step, not once per token
    speedup = "1.46" if method in ("medusa", "hydra", "s4c") else "1.25"
    assert f"| 2 | 25.0% | 1.75 | {speedup} |" in text and "probability 0.400" in text
    assert "--draft mine" in text or f"--method {method} --head mine" in text
    assert "temperatures 0, 1" in text and "20.0% of the target's" in text


def test_a_target_with_early_exits_has_a_card() -> None:
    evaluation = DrafterEvaluation(3, 0.4, 1.75, (0.5, 0.25))
    config = FACTS["config"] | {"exits": {"layer": 0}}
    text = card("mine", FACTS | {"method": "layerskip", "config": config}, [evaluation], (20, 100))
    assert "A model with early exits, made from org/target" in text and "arXiv:2404.16710" in text
    assert "20.0% of its own 100" in text and "not that of the model before" in text
    assert "--target mine --method layerskip\n" in text and "| 2 | 25.0% | 1.75 | 1.25 |" in text


def test_a_predictor_of_draft_lengths_has_a_card() -> None:
    facts = FACTS | {"method": "adaeagle", "start": "org/head"}
    text = card("mine", facts, [LengthEvaluation(3, 2.5, 2.25, 1.75, 0.5, 1.25)], (20, 100))
    assert "arXiv:2412.18910" in text and "A predictor of how many tokens of the head org/head are" in text
    assert "It decides the length of drafts that the target verifies" in text
    assert "0.50 tokens too long or too short in the mean, and with the best constant length 1.25" in text
    assert "Of 2.25 draft tokens 1.75 are accepted, of the longest drafts 2.50" in text
    assert "--target org/target --method adaeagle --head org/head --predictor mine" in text


@pytest.mark.parametrize("method", ACCEPTANCE_PREDICTORS)
def test_a_predictor_has_a_card(method: str) -> None:
    facts = FACTS | {"method": method, "start": "org/draft"}
    text = card("mine", facts, [PredictorEvaluation(3, 0.75, 0.5, 0.4, 0.125)], (20, 100))
    assert f"arXiv:{named(method).paper}" in text and "A predictor of which tokens of org/draft are" in text
    assert "75.0% are accepted" in text and "F1 of 0.500" in text and "alone 0.400" in text
    assert f"--target org/target --method {method} --draft org/draft --predictor mine" in text


def test_a_predictor_of_lossy_acceptance_has_a_card() -> None:
    facts = FACTS | {"method": "sprinter", "start": "org/draft"}
    text = card("mine", facts, [ClassifierEvaluation(3, 0.75, 0.9, 0.2, 0.8)], (20, 100))
    assert "A predictor of which tokens of org/draft need no test by org/target" in text
    assert "the output has another distribution" in text
    assert "Of the held-out tokens to accept, 75% of all, it accepts 90.0% and of the others 20.0%" in text
    assert "--target org/target --method sprinter --draft org/draft --predictor mine" in text
    answers = FACTS["config"] | {"answers": {"generate": False}}
    facts = FACTS | {"method": "judge-decoding", "config": answers}
    text = card("mine", facts, [ClassifierEvaluation(3, 0.75, 0.9, 0.2, 0.8)], (20, 100))
    assert "A judge of draft tokens for org/target" in text and "has another distribution" in text
    assert "--target org/target --method judge-decoding --draft DRAFT --judge mine" in text


@pytest.mark.parametrize(
    ("method", "head", "target", "length"),
    [
        ("eagle", {}, "org/target", 5),
        ("distillspec", {}, "org/target", 5),
        ("medusa", {}, "org/target", 2),
        ("medusa", {"draft_vocab": 1000}, "org/target", None),  # vLLM loads whole vocabularies only
        ("hydra", {}, "org/target", None),
        ("eagle", {}, "zoo:target", None),  # a name that vLLM does not know
    ],
)
def test_cards_have_a_command_for_vllm_where_it_loads_the_drafter(
    method: str, head: dict[str, int], target: str, length: int | None
) -> None:
    config = FACTS["config"] | {"head": FACTS["config"]["head"] | head}
    text = card("mine", FACTS | {"method": method, "target_name": target, "config": config}, [], (20, 100))
    assert ("vllm serve" in text) == (length is not None)
    assert length is None or f'"num_speculative_tokens": {length}}}' in text


@pytest.mark.slow
@pytest.mark.parametrize(("method", "setting"), [("eagle3", "head.unroll=2"), ("s2d", "exits.layers=1")])
def test_two_processes_train_one_drafter(method: str, setting: str, tiny, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": f"def f{index}(a):"}) for index in range(8)))
    folder = tmp_path / "out"
    changes = f"steps=3 batch=2 texts=6 held_out=0.2 length=32 answers.max_tokens=8 answers.batch=3 {setting}"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"),
        *("outpace", "train", method, "--target", tiny.target, "--data", data, "--output", folder),
        *(("--draft", tiny.draft) if method == "s2d" else ()),
        *(part for change in changes.split() for part in ("--set", change)),
        *("--dtype", "float32", "--threads", "1"),
    ]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((folder / "training.json").read_text())["processes"] == 2
    lines = (folder / "work" / "checkpoints" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert (folder / "model.safetensors").exists() and (folder / "README.md").exists()
