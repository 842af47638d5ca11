"""A model is loaded only if a text may be read in parts; rows that change one another are read one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outpace
from outpace.models.hf.target import HFTarget

PROMPTS = [[5, 9, 11, 30, 22, 8, 7, 5, 9, 11], [12, 13, 40], [50, 21, 33, 45, 3, 12, 50]]


class MixesRows(nn.Module):
    """Wherever a text begins behind another in one forward, its tokens are shifted into one another."""

    def __init__(self, layer: nn.Module, error: bool) -> None:
        super().__init__()
        self.layer, self._error = layer, error

    def forward(self, hidden: Tensor, *args: Any, position_ids: Tensor, **kwargs: Any) -> Any:
        if (position_ids.diff() < 1).any():
            if self._error:
                raise RuntimeError("the rows have unequal lengths")
            hidden = hidden + hidden.roll(1, 1)
        return self.layer(hidden, *args, position_ids=position_ids, **kwargs)


def greedy(target: Any, method: str) -> list[list[int]]:
    found = outpace.generate(target, PROMPTS, method, max_tokens=8, temperature=0, ignore_eos=True)
    return [result.tokens for result in found]


@pytest.mark.parametrize("error", [False, True])
def test_rows_that_change_one_another_are_read_one_by_one(error: bool, tiny: Any) -> None:
    model = tiny("llama")
    expected = greedy(model, "autoregressive")
    assert HFTarget(model).forward.packs
    model.model.layers[1] = MixesRows(model.model.layers[1], error)
    target = HFTarget(model)
    assert not target.forward.packs
    for method in ("autoregressive", "prompt-lookup"):
        assert greedy(target, method) == expected


def test_three_rows_of_a_model_with_convolutions_inside_attention(tiny: Any) -> None:
    model = tiny("zaya")
    target = HFTarget(model)
    with torch.no_grad():
        expected = [
            model.generate(
                torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
            )[0, len(prompt) :].tolist()
            for prompt in PROMPTS
        ]
    for method in ("autoregressive", "prompt-lookup", "token-recycling"):
        assert greedy(target, method) == expected


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("bert", "BertLMHeadModel computes something else when a text is read in parts.*set is_decoder"),
        ("cpmant", "CpmAntForCausalLM cannot read a text in parts"),
    ],
)
def test_a_model_that_reads_texts_only_as_a_whole_is_refused(name: str, sentence: str, tiny: Any) -> None:
    with pytest.raises(ValueError, match=sentence):
        HFTarget(tiny(name))


def test_a_bert_that_is_a_decoder_is_not(tiny: Any) -> None:
    target = HFTarget(tiny("bert", is_decoder=True))
    assert greedy(target, "prompt-lookup") == greedy(target, "autoregressive")


@pytest.mark.parametrize("dtype,refused", [(torch.bfloat16, False), (torch.float32, True)])
def test_logits_of_32_bits_may_have_the_rounding_of_a_model_of_16(
    dtype: torch.dtype, refused: bool, tiny: Any
) -> None:
    """As those of Mamba 2: the model's own dtype says how much they may differ."""

    def rounded(module: nn.Module, inputs: Any, output: Any) -> None:
        output.logits = output.logits.float() * (1 + 0.02 * output.logits.shape[1])

    model = tiny("llama").to(dtype)
    model.register_forward_hook(rounded)
    if refused:
        with pytest.raises(ValueError, match="computes something else when a text is read in parts"):
            HFTarget(model)
    else:
        HFTarget(model)
