"""Every method on architectures of each kind, and a method of each family on every architecture: it decodes,
or refuses the model in one sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from outpace.core.sampling_params import SamplingParams
from outpace.models.hf.target import HFTarget
from outpace.proof.decode_all import texts
from outpace.proof.models import Models, cross_vocabulary
from outpace.proof.option_values import choices
from outpace.recipes import get, names
from tests.models.conftest import TINY, build
from tests.tiers import OF_FAMILIES, with_parts_of_their_own

VOCAB = 20
PROMPTS = ((3, 4, 5, 3, 4, 5, 3, 4), (7,))
SAMPLING = [SamplingParams(0.0, max_tokens=6), SamplingParams(0.8, max_tokens=6, seed=1)]
# of each kind of layers one: full and sliding attention, absolute positions, compressed keys and values,
# recurrent layers beside attention and alone
OF_EACH_KIND = ("llama", "gemma3_text", "gpt2", "deepseek_v3", "qwen3_next", "falcon_h1", "mamba2")


def models(family: str) -> Models:
    """A model of a family, and a copy of it with noise as draft model."""
    sizes = {"vocab_size": VOCAB}
    if "vocab_size_per_layer_input" in TINY[family]:
        sizes["vocab_size_per_layer_input"] = VOCAB
    model = build(family, **sizes)
    noisy = copy.deepcopy(model)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in noisy.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        target, draft = HFTarget(model), HFTarget(noisy)

    @torch.no_grad()
    def logits(rows: Sequence[Sequence[int]]) -> Tensor:
        return model(torch.tensor(rows), use_cache=False).logits[:, -1]

    return Models(family, target, (draft, draft), logits, cross_vocabulary(draft, VOCAB))


def faults(family: str) -> dict[str, str]:
    """The methods that raise another error than a ValueError of one sentence on a model of this family."""
    found = dict[str, str]()
    try:
        made = models(family)
    except ValueError:  # no method can use it: test_refusals.py has the sentences
        return found
    for name in with_parts_of_their_own(names()) if family in OF_EACH_KIND else OF_FAMILIES:
        try:
            recipe = get(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                parts = recipe.build(made.target, **next(choices(recipe, made)))
                texts(parts, [list(prompt) for prompt in PROMPTS], SAMPLING)
        except ValueError as refusal:
            if "\n" in str(refusal).strip():
                found[name] = repr(refusal)
        except Exception as error:
            found[name] = repr(error)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", TINY)
def test_methods_decode_or_refuse_in_a_sentence(family: str) -> None:
    assert faults(family) == {}


def test_an_architecture_of_each_kind_meets_every_method() -> None:
    assert {*OF_EACH_KIND} <= {*TINY}


def test_the_memory_of_models_without_attention_is_estimated() -> None:
    made = models("mamba2")
    parts = get("specmemo").build(made.target, draft=made.drafts[0], widths=(1, 1))
    rows, greedy = [list(prompt) for prompt in PROMPTS], [SAMPLING[0]] * 2
    assert texts(parts, rows, greedy) == texts(get("autoregressive").build(made.target), rows, greedy)
