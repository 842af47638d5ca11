"""The environment variables of vLLM's processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.peers import vllm_variables as module
from benchmarks.peers.vllm_variables import vllm_variables


@pytest.fixture(autouse=True)
def nothing_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(module, "find_library", lambda _name: None)


def test_each_thread_has_a_cpu(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "nobind"
    found = vllm_variables(tmp_path / "bin" / "python", 1)
    assert found["OMP_NUM_THREADS"] == "1" and found["VLLM_CPU_OMP_THREADS_BIND"] == str(first)
    assert "LD_PRELOAD" not in found


def test_the_allocator_and_the_openmp_library_of_the_environment_are_preloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openmp = tmp_path / "lib" / "libiomp5.so"
    openmp.parent.mkdir()
    openmp.touch()
    installed = {"tcmalloc_minimal": "libtcmalloc_minimal.so.4"}
    monkeypatch.setattr(module, "find_library", installed.get)
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    found = vllm_variables(tmp_path / "bin" / "python", 2)
    assert found["LD_PRELOAD"] == f"libother.so:libtcmalloc_minimal.so.4:{openmp}"
