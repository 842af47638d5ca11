"""`outpace audit`: proofs, tests on a user's model, and when it fails."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outpace.cli.app import app
from outpace.cli.commands.audit_target import check
from outpace.proof import suite
from outpace.recipes import get

WRONG = '''"""A drafter that chooses the likeliest token and claims to have drawn it."""

from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.draft_model import DraftModel
from outpace.verifiers.rejection import Rejection


class Likeliest(DraftModel):
    def propose(self, ctx, plan):
        class Sure(type(ctx.noise)):
            def choose(self, probs, key):
                return probs.argmax(-1) if key.use == "draft" else super().choose(probs, key)

        ctx.noise.__class__ = Sure
        return super().propose(ctx, plan)


@recipe(paper="nobody's", family="wrong")
def likeliest(target: Target, *, draft: Target, depth: int = 2) -> Parts:
    return Parts(target, Likeliest(draft), Rejection(), Fixed(depth))
'''


def short(*kinds: str) -> dict[str, suite.ProofPlan]:
    """Proofs of these kinds on shorter texts than the command's."""
    return {kind: replace(suite.PLANS[kind], most=300, most_varied=100) for kind in kinds}


def audit(*arguments: str) -> tuple[int, str]:
    # one process: the tests replace functions, which other processes would not see
    result = CliRunner().invoke(app, ["audit", *arguments, "--processes", "1"])
    return result.exit_code, result.stdout


@pytest.mark.slow
def test_a_report_lists_enumerations_and_measurements(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    # tests/proof plants the others
    few = dict(islice(suite.mistakes().items(), 5))
    monkeypatch.setattr(suite, "mistakes", lambda: few)
    monkeypatch.setattr(suite, "PLANS", short("table", "peaked", "transformers"))
    code, out = audit(
        "prompt-lookup",
        "--target",
        tiny.target,
        "--prompt",
        "def add(a, b):",
        "--prompt",
        "for index in",
        "--samples",
        "16",
        "--max-tokens",
        "40",
        "--json",
    )
    report = json.loads(out)
    assert code == 0 and report["passed"]
    assert {proof["models"].split(",")[0] for proof in report["proofs"]} >= {
        "table",
        "peaked table",
        "transformers",
    }
    for proof in report["proofs"]:
        assert proof["recipe"] == "prompt-lookup" and proof["holds"] and proof["verdict"] == "exact"
        assert proof["outcomes"] > 0 and proof["temperatures"] == [0.0, 0.7, 1.0]
        assert proof["accepted"] > 0 and proof["deepest"] >= min(2, proof["allowed"])
    assert len(report["mistakes"]) == 5 and all(mistake["caught"] for mistake in report["mistakes"])
    (check,) = report["target"]["methods"]
    assert check["bugs"] == 0 and check["holds"] and check["drafted"] > 0
    test = check["sampling"]["all"]
    assert test["holds"] and test["tokens"] == 16 * 40 and test["false_alarms"] == 0.01 / 2


@pytest.mark.slow
def test_a_recipe_with_a_false_claim_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "mistakes", dict)
    monkeypatch.setattr(suite, "PLANS", short("table"))
    file = tmp_path / "likeliest.py"
    file.write_text(WRONG)
    code, out = audit("--recipe", str(file), "--json")
    report = json.loads(out)
    assert code == 1 and not report["passed"]
    assert max(proof["error"] or 0 for proof in report["proofs"]) > 1e-2


@pytest.mark.slow
def test_a_known_mistake_that_slips_through_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "mistakes", lambda: {"harmless": lambda: 0.0})
    monkeypatch.setattr(suite, "PLANS", short("table"))
    code, out = audit("autoregressive")
    assert code == 1 and "MISSED" in out and "FAILED" in out


@pytest.mark.slow
def test_a_method_that_refuses_the_model_does_not_end_the_audit_of_the_rest(tiny) -> None:
    methods = [get("mtp"), get("prompt-lookup")]
    report = check(methods, tiny.target, None, ["def add(a, b):"], 40, 16, 0.01)
    assert [each["method"] for each in report["methods"]] == ["prompt-lookup"]
    assert [each["method"] for each in report["skipped"]] == ["mtp"]
    assert "no layers for further tokens" in report["skipped"][0]["skipped"]
    with pytest.raises(ValueError, match="no layers for further tokens"):
        check(methods[:1], tiny.target, None, ["def add(a, b):"], 40, 16, 0.01)
