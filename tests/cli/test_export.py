"""`outpace export` on the command line."""

from __future__ import annotations

import json
import shlex
import sys

import pytest


def test_the_command_is_all_of_standard_output(outpace_, tiny, tmp_path):
    result = outpace_("export", tiny.draft, "--engine", "vllm", "--target", tiny.target, "-o", "drafter")
    assert result.exit_code == 0, result.output
    program, verb, target, option, config = shlex.split(result.stdout)
    assert [program, verb, target, option] == ["vllm", "serve", str(tiny.target), "--speculative-config"]
    assert json.loads(config) == {"method": "draft_model", "model": "drafter", "num_speculative_tokens": 5}
    assert "drafter is for vLLM" in result.stderr and (tmp_path / "drafter" / "config.json").is_file()


def test_an_unknown_engine_is_named_before_anything_is_loaded(
    outpace_, tiny, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "outpace.api.export", None)
    result = outpace_("export", tiny.draft, "--engine", "tgi", "--target", tiny.target, "-o", "drafter")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "there is no engine tgi: --engine takes vllm, sglang, transformers" in result.stderr
