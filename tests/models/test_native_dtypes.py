"""On a CPU without arithmetic in 16 bits, models are loaded in float32, and whoever uses one is told so."""

from __future__ import annotations

import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

import outpace
from outpace.bench.measure.contender import precision_of
from outpace.cli.failures import warnings_in_one_line
from outpace.models.hf.target import HFTarget
from outpace.models.native_dtypes import compiled_notice, fastest_dtype, is_native, warn_once
from outpace.models.openvino.compiled import CompiledForward
from outpace.models.openvino.runtime import compiled_dtype

FOUND = {
    "amd64": ({"avx2": True, "avx512_bf16": True, "avx512_fp16": False}, True, False),
    "amx": ({"amx_bf16": True, "avx512_fp16": True}, True, True),
    "old": ({"avx2": True, "f16c": True, "avx512_bf16": False}, False, False),
    "arm": ({"neon": True, "bf16": True, "fp16_arith": True}, True, True),
    "old arm": ({"neon": True, "bf16": False, "fp16_arith": False}, False, False),
    "other": ({"architecture": "ppc64le"}, False, False),
}


@pytest.fixture
def old_cpu(monkeypatch):
    """A CPU that computes in float32 and float64 alone, and a process that has said nothing yet."""
    warn_once.cache_clear()
    monkeypatch.setattr(
        "outpace.models.native_dtypes.is_native", lambda dtype: dtype in (torch.float32, torch.float64)
    )


@pytest.mark.parametrize("name", FOUND)
def test_a_dtype_is_native_where_there_are_instructions_and_kernels(name, monkeypatch):
    found, bfloat16, float16 = FOUND[name]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    for kernels in (True, False):
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda kernels=kernels: kernels)
        assert is_native(torch.bfloat16) == (bfloat16 and kernels)
        assert is_native(torch.float16) == (float16 and kernels)
        assert is_native(torch.float32) and is_native(torch.float64)
        assert fastest_dtype() == (torch.bfloat16 if bfloat16 and kernels else torch.float32)


def test_a_checkpoint_in_bfloat16_is_loaded_in_float32_and_the_user_is_told(old_cpu):
    with pytest.warns(UserWarning, match="no arithmetic in bfloat16: .* twice the .* --dtype bfloat16"):
        model = outpace.load("zoo:draft", device="cpu")
    assert model.target.model.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_dtype_that_the_user_names_is_kept(old_cpu, dtype):
    with pytest.warns(UserWarning, match=f"no arithmetic in {dtype}: PyTorch emulates it.* --dtype float32"):
        model = outpace.load("zoo:draft", device="cpu", dtype=dtype)
    assert model.target.model.dtype == getattr(torch, dtype)


def test_without_a_choice_to_make_nothing_is_said(old_cpu, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        outpace.load("zoo:draft", device="cpu", dtype="float32")
        monkeypatch.setattr("outpace.models.native_dtypes.is_native", lambda dtype: True)
        assert outpace.load("zoo:draft", device="cpu").target.model.dtype == torch.bfloat16


@pytest.mark.parametrize(("able", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_models_in_float16_are_compiled_in_another_dtype(monkeypatch, able, dtype):
    """Compiled in float16, which some CPUs offer, the package's draft has logits that are not numbers."""
    monkeypatch.setattr("outpace.models.openvino.runtime._computes", lambda kind: able)
    assert compiled_dtype(torch.float16) == getattr(torch, dtype)
    assert compiled_dtype(torch.bfloat16) == torch.bfloat16
    said = compiled_notice("zoo:draft", torch.float16, getattr(torch, dtype))
    assert said == (
        f"the compiled forwards of zoo:draft compute in {dtype}, not in float16: --dtype {dtype} "
        f"(dtype='{dtype}') loads it so too"
    )
    assert compiled_notice("zoo:draft", torch.float32, torch.float32) is None


def test_a_model_in_float16_runs_compiled_and_the_sentence_names_it():
    with pytest.warns(UserWarning, match="the compiled forwards of zoo:draft compute in .*, not in float16"):
        model = outpace.load("zoo:draft", device="cpu", dtype="float16", compile=True)
    assert isinstance(model.target.compiled, CompiledForward)
    assert model.target.compiled.precision in (torch.bfloat16, torch.float32)


def test_logits_beyond_float16_are_named_as_the_cause(tiny):
    model = tiny("llama").to(torch.float16)
    with torch.no_grad():
        model.model.norm.weight.fill_(6e4)
        model.lm_head.weight.fill_(6e4)
    with pytest.warns(UserWarning, match="its eager logits are not finite in float16: load it in float32"):
        assert HFTarget(model, compile=True).compiled is None


def test_reports_name_the_precision_in_effect(old_cpu, tiny):
    model = SimpleNamespace(dtype=torch.float16, device=torch.device("cpu"))
    assert precision_of(model) == "f16, not native"
    assert precision_of(model, torch.float32) == "f16, computed in f32"
    compiled = HFTarget(tiny("llama").float(), compile=True).compiled
    assert isinstance(compiled, CompiledForward) and compiled.precision == torch.float32
    model.dtype = torch.float32
    assert precision_of(model, compiled.precision) == precision_of(model) == "f32"


def test_the_command_line_says_it_in_one_line():
    with warnings_in_one_line():
        assert warnings.formatwarning("slow", UserWarning, "file.py", 3) == "outpace: slow\n"
        assert "file.py:3" in warnings.formatwarning("old", DeprecationWarning, "file.py", 3)
    assert "file.py:3" in warnings.formatwarning("slow", UserWarning, "file.py", 3)


@pytest.mark.slow
def test_it_is_said_once_a_process():
    script = """
import outpace
from outpace.models import native_dtypes
native_dtypes.is_native = lambda dtype: False
for name in ("zoo:target", "zoo:draft"):
    outpace.load(name, device="cpu", compile=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("no arithmetic in bfloat16") == 1
