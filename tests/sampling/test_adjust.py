"""Settings that change logits equal the installed transformers' and vLLM's definition at every node of a
tree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from outpace.core.context import Context
from outpace.core.contracts import Scores
from outpace.core.grower import Grower
from outpace.core.noise import KeyedNoise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest, TokenTree
from outpace.models.table import TableTarget
from outpace.sampling.adjust import adjust
from outpace.sampling.target_probs import LazyTargetProbs

VOCAB = 40
PROMPTS = (3, 2)
TEXTS = (torch.tensor([5, 1, 9, 7, 5, 7, 3]), torch.tensor([6, 7, 2, 2]))
FOREST = Forest.of((-1, -1, 0, 0, 1, 2, 2, 5, 5, 4), 2)  # two rows, with siblings on three levels
DRAFT = torch.tensor([3, 2, 7, 4, 2, 7, 1, 7, 9, 8])  # a path that repeats its own tokens and the text's
WORDS = ((11,), (7, 7), (3, 7), (2, 2, 13), (7, 3, 7, 7, 9), (0,))
STOP = (0, 21)

Processor = Callable[[Tensor, Tensor], Tensor]


class Counted:
    """vLLM's presence and frequency penalties, written down for one row."""

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self._prompt, self._presence, self._frequency = prompt, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = input_ids[0, self._prompt :].bincount(minlength=VOCAB)
        return scores - self._frequency * counts - self._presence * (counts > 0)


# setting -> (its parameters, the processor that defines it, given the length of the prompt); in
# their order
SETTINGS: dict[str, tuple[dict[str, object], Callable[[int], Processor]]] = {
    "logit_bias": (
        {"logit_bias": ((4, 1.5), (7, -2.0), (12, float("-inf")))},
        lambda _: SequenceBiasLogitsProcessor({(4,): 1.5, (7,): -2.0, (12,): float("-inf")}),
    ),
    "repetition_penalty": ({"repetition_penalty": 1.3}, lambda _: RepetitionPenaltyLogitsProcessor(1.3)),
    "presence_penalty": ({"presence_penalty": 0.7}, lambda prompt: Counted(prompt, 0.7, 0)),
    "frequency_penalty": ({"frequency_penalty": -0.4}, lambda prompt: Counted(prompt, 0, -0.4)),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, lambda _: NoRepeatNGramLogitsProcessor(2)),
    "bad_words": (
        {"bad_words": WORDS},
        lambda _: NoBadWordsLogitsProcessor([list(word) for word in WORDS], list(STOP)),
    ),
    "min_tokens": (
        {"min_tokens": 6},
        lambda prompt: MinNewTokensLengthLogitsProcessor(prompt, 6, list(STOP)),
    ),
    "temperature": ({"temperature": 0.8}, lambda _: TemperatureLogitsWarper(0.8)),
    "top_k": ({"top_k": 20}, lambda _: TopKLogitsWarper(20)),
    "top_p": ({"top_p": 0.9}, lambda _: TopPLogitsWarper(0.9)),
    "min_p": ({"min_p": 0.1}, lambda _: MinPLogitsWarper(0.1)),
    "typical_p": ({"typical_p": 0.7}, lambda _: TypicalLogitsWarper(0.7)),
}
ALONE = [(name,) for name in SETTINGS]
PAIRS = list(combinations(SETTINGS, 2))


def params_of(names: tuple[str, ...]) -> SamplingParams:
    row_params: dict[str, object] = {"temperature": 1.0, "stop": STOP}
    for name in names:
        row_params |= SETTINGS[name][0]
    return SamplingParams(**row_params)


def distribution(logits: Tensor, *sampling: SamplingParams) -> LazyTargetProbs:
    noise = KeyedNoise([3, 4], [1, 1], [len(text) for text in TEXTS])
    ctx = Context(
        TEXTS, (7, 4), (9, 9), (0, 1), TableTarget(2).open(2, 9), sampling, noise, prompt_lengths=PROMPTS
    )
    return LazyTargetProbs(Scores(0, logits), TokenTree(DRAFT, FOREST), ctx)


def random_logits(seed: int = 0) -> Tensor:
    return (
        torch.randn(len(FOREST), VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        * 2
    )


def expected(logits: Tensor, names: tuple[str, ...]) -> Tensor:
    """Each node by itself, as plain decoding would meet it."""
    distributions = []
    for node, row in enumerate(FOREST.rows):
        processors = LogitsProcessorList(
            [SETTINGS[name][1](PROMPTS[row]) for name in SETTINGS if name in names]
        )
        history = torch.cat([TEXTS[row], DRAFT[FOREST.path(node)[1:]]])[None]
        distributions.append(processors(history, logits[node : node + 1].clone()).softmax(-1)[0])
    return torch.stack(distributions)


@pytest.mark.parametrize("names", [*ALONE, *PAIRS, tuple(SETTINGS)], ids="+".join)
def test_distributions_equal_transformers_at_every_node(names: tuple[str, ...]) -> None:
    logits = random_logits()
    params = params_of(names)
    found = distribution(logits, params, params).probs(None)
    assert torch.allclose(found, expected(logits, names), atol=1e-12)
    one_by_one = distribution(logits, params, params)
    assert torch.equal(torch.cat([one_by_one.probs([node]) for node in (8, 2, 9, 0)]), found[[8, 2, 9, 0]])


def test_greedy_choices_follow_the_settings() -> None:
    logits, noise = random_logits(1), KeyedNoise([3, 4], [1, 1], [7, 4])
    names = ("logit_bias", "repetition_penalty", "presence_penalty", "bad_words", "min_tokens")
    params = SamplingParams(
        stop=STOP, **{key: value for name in names for key, value in SETTINGS[name][0].items()}
    )
    assert (
        distribution(logits, params, params).choose(None, noise)
        == expected(logits, names).argmax(-1).tolist()
    )


def test_rows_with_and_without_settings_share_a_batch() -> None:
    logits = random_logits(2)
    with_, without = params_of(("repetition_penalty", "frequency_penalty")), SamplingParams(1.0, stop=STOP)
    found = distribution(logits, with_, without).probs(None)
    for node, row in enumerate(FOREST.rows):
        one = distribution(logits, *((with_,) * 2 if row == 0 else (without,) * 2)).probs([node])
        assert torch.equal(found[node], one[0])


def test_the_targets_logits_are_not_modified() -> None:
    logits = random_logits()
    before = logits.clone()
    params = params_of(tuple(SETTINGS))
    distribution(logits, params, params).probs(None)
    distribution(logits, params, params).probs([3])
    assert torch.equal(logits, before)


def test_rows_without_settings_build_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outpace.sampling.target_probs.Adjuster", None)
    distribution(random_logits(), SamplingParams(1.0), SamplingParams(0.7, 5, 0.9, min_p=0.1)).probs(None)


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty"])
def test_penalties_change_the_logits_of_a_token_once_however_long_the_text(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, scatter = list[int](), Tensor.scatter_

    def watched(logits: Tensor, dim: int, index: Tensor, values: Tensor) -> Tensor:
        changed.append(index.shape[1])
        return scatter(logits, dim, index, values)

    monkeypatch.setitem(globals(), "TEXTS", (torch.arange(1000) % 7, TEXTS[1]))
    params = params_of((name,))
    expect = expected(random_logits(), (name,))
    monkeypatch.setattr(Tensor, "scatter_", watched)
    found = distribution(random_logits(), params, SamplingParams(1.0)).probs(None)
    assert changed == [7]
    rows = [node for node, row in enumerate(FOREST.rows) if row == 0]
    assert torch.allclose(found[rows], expect[rows], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_is_widened_first(dtype: torch.dtype) -> None:
    logits = random_logits().to(dtype)
    params = params_of(("repetition_penalty", "frequency_penalty", "min_p"))
    found = distribution(logits, params, params).probs(None)
    assert found.dtype == torch.float32
    assert torch.allclose(found, distribution(logits.float(), params, params).probs(None), atol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_settings_that_leave_nothing_are_one_clear_sentence(temperature: float) -> None:
    params = SamplingParams(temperature, bad_words=tuple((token,) for token in range(VOCAB)))
    with pytest.raises(ValueError, match="leave no token that may come next"):
        distribution(random_logits(), params, params).choose([0], KeyedNoise([3, 4], [1, 1], [7, 4]))


def test_a_drafter_sees_what_the_target_will() -> None:
    """The same change at the same nodes, and the same tensor object if no parameter is set."""
    logits = random_logits()
    grower = Grower(DRAFT[:2])
    noise = KeyedNoise([3, 4], [1, 1], [7, 4])
    for node in range(2, len(FOREST)):
        grower.add_chosen([FOREST.parents[node]], DRAFT[node : node + 1])
    params = params_of(("logit_bias", "repetition_penalty", "presence_penalty", "bad_words", "min_tokens"))
    ctx = Context(
        TEXTS,
        (7, 4),
        (9, 9),
        (0, 1),
        TableTarget(2).open(2, 9),
        (params, params),
        noise,
        prompt_lengths=PROMPTS,
    )
    nodes = [7, 3, 9]
    found = adjust(logits[nodes], ctx, grower, nodes).softmax(-1)
    assert torch.allclose(found, distribution(logits, params, params).probs(nodes), atol=1e-14)
    plain = Context(
        TEXTS, (7, 4), (9, 9), (0, 1), TableTarget(2).open(2, 9), (SamplingParams(1.0),) * 2, noise
    )
    assert adjust(logits, plain, grower, nodes) is logits


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"min_p": -0.1}, "min_p is -0.1; use a number from 0 to 1"),
        ({"min_p": float("nan")}, "min_p is nan"),
        ({"typical_p": 0.0}, "typical_p is 0.0; use a number above 0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; use a positive number"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; use a number from -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5 and max_tokens 4; ask for 0 to 4"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias of token 3 is nan"),
        ({"logit_bias": ((3, float("inf")),)}, "logit_bias of token 3 is inf"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias of token -1"),
        ({"bad_words": ((),)}, "bad word is empty"),
        ({"bad_words": ((1, -2),)}, "bad word is empty or holds a negative"),
    ],
)
def test_settings_that_mean_nothing_are_refused(params: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SamplingParams(**params)
