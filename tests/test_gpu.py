"""On a CUDA GPU: the greedy texts of every method, with eager forwards and with CUDA graphs, are those of
plain decoding. `make gpu-check` runs these; without a GPU they are skipped, and test_devices looks for
operations that mix devices."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest
import torch

import outpace
from outpace.api.model import Model
from outpace.core.contracts import Guarantee
from outpace.models.heads.dovetail.head import untrained_dovetail
from outpace.models.heads.head_model import HeadModel
from outpace.recipes import MissingOptionError, find

PROMPTS = [
    "def area(width, height):\n    return width",
    "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3,
]
# a draft model of four layers, which runs eagerly
USUAL: dict[str, dict[str, Any]] = {"easyspec": {"draft": "zoo:target"}}
EAGER = {"easyspec"}
FURTHER: dict[str, dict[str, Any]] = {"eagle3": {"tree": "chain"}, "speculative-sampling": {"depth": 8}}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@cache
def model(compile: bool) -> Model:
    # texts are compared token by token: products of float32 must not be rounded as TF32
    torch.backends.cuda.matmul.allow_tf32 = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a model that is not compiled warns
        return outpace.load("zoo:target", dtype="float32", device="cuda", compile=compile)


def decoded(compile: bool, method: str, batch: int = 1, **options: Any) -> list[outpace.Result]:
    how: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "stop": [], "batch": batch}
    return outpace.generate(model(compile), PROMPTS, method=method, **how, **options)


@cache
def plain() -> list[list[int]]:
    return [list(each.tokens) for each in decoded(False, "autoregressive")]


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("name", [name for name, each in find().items() if each.guarantee != Guarantee.LOSSY])
def test_the_text_is_that_of_plain_decoding(name: str, compile: bool) -> None:
    if compile and name in EAGER:
        pytest.skip("its draft model cannot be compiled")
    for options in (USUAL.get(name, {}), FURTHER.get(name)):
        for batch in (1, 2):
            if options is not None:
                try:
                    found = decoded(compile, name, batch, **options)
                except MissingOptionError as error:
                    pytest.skip(str(error))
                assert [list(each.tokens) for each in found] == plain()
    outpace.generate(
        model(compile), PROMPTS, method=name, max_tokens=12, temperature=1, seed=1, **USUAL.get(name, {})
    )


def test_a_head_on_the_gpu_drafts_for_a_target_on_the_cpu() -> None:
    beside = outpace.load("zoo:target", dtype="float32", device="cpu")
    head = HeadModel(untrained_dovetail(beside.target))
    how: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "stop": []}
    expected = outpace.generate(beside, PROMPTS, method="autoregressive", **how)
    found = outpace.generate(beside, PROMPTS, method="dovetail", head=head, head_device="cuda", **how)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
