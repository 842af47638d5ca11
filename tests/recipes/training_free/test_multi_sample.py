"""Multi-sample: drafts are what the other samples agree on, each text is unchanged, and more samples accept
more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch

import outpace
from outpace.core.contracts import Parts, Step
from outpace.core.noise import derived
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.models.hf.target import HFTarget, load
from outpace.models.names import resolve
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.sampled_test import uniform_values
from outpace.recipes.base.autoregressive import autoregressive
from outpace.recipes.training_free.multi_sample import (
    ROOT,
    Consensus,
    ContinuationGraph,
    SampleGroup,
    multi_sample,
)
from outpace.sampling.target_probs import LazyTargetProbs

VOCAB = 12
CODE = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n"


def model(seed: int = 3) -> TableTarget:
    return TableTarget(VOCAB, order=1, seed=seed, spread=2.0)


def row_params(
    count: int, tokens: int = 40, temperature: float = 1.0, **settings: Any
) -> list[SamplingParams]:
    return [
        SamplingParams(temperature, max_tokens=tokens, seed=derived(7, row), **settings)
        for row in range(count)
    ]


def steps(parts: Parts, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> list[Step]:
    session = Session(parts, [torch.tensor(prompt) for prompt in prompts], sampling, LazyTargetProbs)
    return [step for step in session.steps() if step.scores.logits is not None]


def kept(found: Sequence[Step]) -> float:
    """Mean tokens a step and row, the bonus counted."""
    generated = [len(row) for step in found for row in step.generated]
    return sum(generated) / len(generated)


def drafted(step: Step) -> dict[int, list[tuple[int, ...]]]:
    """Per slot the paths of its draft nodes."""
    tokens, forest = step.draft.tree.tokens.tolist(), step.draft.tree.forest
    paths = [
        [tuple(tokens[n] for n in forest.path(leaf)[1:]) for leaf in nodes[1:]] for nodes in forest.nodes
    ]
    return dict(zip(step.ctx.slots, paths, strict=True))


def shares(
    target: TableTarget, texts: Sequence[list[int]], starts: Sequence[int], slot: int, path: tuple[int, ...]
) -> dict[int, float]:
    """What followed a row's last four to two tokens in rows with its prompt, then this path's last token
    anywhere."""
    own, weights = texts[slot], dict[int, float]()
    for other, text in enumerate(texts):
        if other == slot or text[: starts[other]] != own[: starts[slot]]:
            continue
        for end in range(starts[other], len(text)):
            fits = [
                size
                for size in (4, 3, 2)
                if end >= size <= len(own) and text[end - size : end] == own[-size:]
            ]
            length = max(fits, default=0)
            at = end + len(path)
            if length and at < len(text) and (not path or text[at - 1] == path[-1]):
                prob = float(target.logits[target.state(text[:at])].softmax(-1)[text[at]])
                weights[text[at]] = weights.get(text[at], 0.0) + length * prob
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


@pytest.mark.parametrize("tree", [False, True])
def test_drafts_follow_the_rule(tree: bool) -> None:
    """From whole texts, ended ones too, and nothing of prompts, of other groups or of refused tokens."""
    target, min_share, nodes = model(), 0.35, 6
    parts = multi_sample.build(target, tree=tree, nodes=nodes, min_share=min_share, max_matches=1000)
    prompts = [[1, 2, 1, 2, 3], [4], [1, 2, 1, 2, 3], [1, 2, 1, 2, 3], [4]]
    sampling = [
        SamplingParams(1.0, max_tokens=size, seed=row) for row, size in enumerate((60, 40, 20, 50, 30))
    ]
    texts, starts, last = [list(prompt) for prompt in prompts], list(map(len, prompts)), 0
    for step in steps(parts, prompts, sampling):
        for (slot, paths), max_depth in zip(drafted(step).items(), step.ctx.max_draft_depth, strict=True):
            expected: list[tuple[int, ...]] = []
            open_: dict[tuple[int, ...], float] = {(): 1.0}
            while open_ and len(expected) < (nodes if tree else 10):
                path = max(open_, key=lambda each: open_[each])
                probability = open_.pop(path)
                if path:
                    expected.append(path)
                if len(path) < min(10, max_depth):
                    below = shares(target, texts, starts, slot, path)
                    best = sorted(below, key=lambda token: -below[token])[: None if tree else 1]
                    open_ |= {
                        (*path, token): probability * below[token]
                        for token in best
                        if below[token] >= min_share
                    }
            assert set(paths) == set(expected)
            last += bool(paths) and step.ctx.slots == (0,)
        for slot, generated in zip(step.ctx.slots, step.generated, strict=True):
            texts[slot] += generated
    assert last > 0  # the last row of all still drafts from those that have ended


def test_equal_tokens_at_an_equal_distance_are_one_node() -> None:
    group = SampleGroup([5, 6], 1)
    texts = {0: ([1, 7, 8], 0.5), 1: ([2, 7, 9], 0.25), 2: ([2, 4], 0.25), 3: ([], 1.0)}
    for member, (text, prob) in texts.items():
        assert group.join() == member
        group.extend(member, iter([(token, prob) for token in text]))
    merged = ContinuationGraph(group.matches(3, [5, 6], 10))
    assert [size for size, *_ in group.matches(3, [5, 6], 10)] == [2, 2, 2]
    assert merged.shares_below(ROOT) == [(0.5, 1), (0.5, 2)]
    assert merged.shares_below((1, 2)) == [(0.5, 4), (0.5, 7)]
    assert merged.shares_below((2, 7)) == [(pytest.approx(2 / 3), 8), (pytest.approx(1 / 3), 9)]
    assert merged.path(9, 0.3) == [1, 7, 8]  # two tokens reached in different ways count together
    assert merged.path(9, 0.6) == []
    assert group.matches(0, [5, 6], 1)[0][1] == [5, 6, 2, 4]  # of equal matches the newest


def test_tokens_that_end_a_text_end_its_draft() -> None:
    group = SampleGroup([5], 1)
    for text in ([1, 2, 3], [1, 2, 4], []):
        group.extend(group.join(), iter([(token, 1.0) for token in text]))
    found = ContinuationGraph(group.matches(2, [5], 10)).branches(9, 9, 0.1, (2,))
    assert (found.tokens, found.parents) == ([1, 2], [-1, 0])
    sampling = row_params(6, 60, stop=(4,))
    for step in steps(multi_sample.build(model(), min_ngram=1), [[1, 2]] * 6, sampling):
        assert not any(4 in path[:-1] for paths in drafted(step).values() for path in paths)


def test_one_sample_is_decoded_plainly() -> None:
    target, prompts = model(), [[1, 2, 1, 2], [1, 2, 1], [3]]
    found = steps(multi_sample.build(target), prompts, row_params(3))
    assert all(len(step.draft.tree) == len(step.generated) for step in found)
    assert all(len(row) == 1 for step in found for row in step.generated)


def test_other_prompts_in_the_batch_change_nothing() -> None:
    target, sampling = model(), row_params(7)
    prompts = [[1, 2], [1, 2, 2], [1, 2], [1, 2, 2], [2], [1, 2], [1, 2, 2]]
    together = steps(multi_sample.build(target), prompts, sampling)
    for rows in ([0, 2, 5], [1, 3, 6], [4]):
        apart = steps(
            multi_sample.build(target), [prompts[row] for row in rows], [sampling[row] for row in rows]
        )
        for one, all_ in zip(apart, together, strict=False):
            assert {rows[slot]: paths for slot, paths in drafted(one).items()} == {
                slot: paths for slot, paths in drafted(all_).items() if slot in rows
            }


def test_nothing_of_a_batch_is_stored() -> None:
    parts, prompts = multi_sample.build(model()), [[1, 2]] * 4
    first, second = (steps(parts, prompts, row_params(4)) for _ in range(2))
    assert [drafted(step) for step in first] == [drafted(step) for step in second]
    assert isinstance(parts.drafter, Consensus)
    assert not parts.drafter._groups and not parts.drafter._rows
    broken = Session(parts, [torch.tensor([1, 2])] * 4, row_params(4), LazyTargetProbs).steps()
    for _ in range(20):
        next(broken)
    assert parts.drafter._groups
    broken.close()
    assert not parts.drafter._groups and not parts.drafter._rows
    assert [drafted(step) for step in steps(parts, prompts, row_params(4))] == [
        drafted(step) for step in first
    ]


def test_rows_have_noise_of_their_own() -> None:
    """The uniform values of the rows' tokens are uncorrelated; with one seed the texts would be equal."""
    target = model()
    prompts = [[a, b] for a in range(VOCAB) for b in range(VOCAB) for _ in range(2)]

    def correlation(sampling: Sequence[SamplingParams]) -> float:
        outputs = texts(multi_sample.build(target, min_ngram=1), prompts, sampling)
        generator, stood = torch.Generator().manual_seed(0), list[list[float]]()
        for prompt, text in zip(prompts, outputs, strict=True):
            whole = [*prompt, *text]
            distributions = [
                target.logits[target.state(whole[:end])].softmax(-1) for end in range(len(prompt), len(whole))
            ]
            stood.append(uniform_values(torch.stack(distributions), text, generator))
        pairs = torch.tensor([[sum(stood[0::2], []), sum(stood[1::2], [])]])[0]
        return float(torch.corrcoef(pairs)[0, 1])

    own = [
        SamplingParams(1.0, max_tokens=6, seed=derived(index // 2, index % 2))
        for index in range(len(prompts))
    ]
    shared = [SamplingParams(1.0, max_tokens=6, seed=index // 2) for index in range(len(prompts))]
    assert abs(correlation(own)) < 4 / (6 * len(prompts) / 2) ** 0.5
    assert correlation(shared) > 0.8


@cache
def zoo(dtype: str) -> tuple[HFTarget, list[int]]:
    target, words = load(resolve("zoo:target"), dtype=dtype)
    return target, words(CODE)["input_ids"]


@pytest.mark.slow
def test_every_sample_is_the_same_as_alone() -> None:
    target, prompt = zoo("float64")
    sampling = row_params(4, 32, 0.5)
    together = texts(multi_sample.build(target, min_ngram=1, tree=True), [prompt] * 4, sampling)
    assert together == [texts(autoregressive.build(target), [prompt], [params])[0] for params in sampling]
    assert len(set(map(tuple, together))) > 1


@pytest.mark.slow
def test_samples_of_option_n_are_those_of_plain_decoding() -> None:
    model, params = (
        outpace.load("zoo:target", dtype="float64"),
        {"n": 3, "seed": 5, "temperature": 0.5, "max_tokens": 32},
    )
    found, plain = (
        outpace.generate(model, CODE, method, **params) for method in ("multi-sample", "autoregressive")
    )
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert sum(each.statistics.num_steps for each in found) < sum(each.statistics.num_steps for each in plain)


@cache
def sampled(count: int, max_matches: int = 32) -> float:
    target, prompt = zoo("float32")
    return kept(
        steps(
            multi_sample.build(target, max_matches=max_matches), [prompt] * count, row_params(count, 80, 0.5)
        )
    )


@pytest.mark.slow
def test_more_samples_accept_more() -> None:
    target = TableTarget(30, order=1, seed=3, spread=3.0)
    found = [
        kept(steps(multi_sample.build(target), [[1, 2, 3]] * count, row_params(count, 60, 0.7)))
        for count in (1, 4, 16)
    ]
    assert found[0] == 1 and found[0] + 0.2 < found[1] < found[2] - 0.2
    assert sampled(2) + 0.1 < sampled(8)


@pytest.mark.slow
def test_consensus_accepts_more_than_the_first_match() -> None:
    for seed in (3, 4):
        target = TableTarget(30, order=1, seed=seed, spread=3.0)
        prompts, sampling = [[row, 2] for row in range(6) for _ in range(8)], row_params(48, 60, 0.7)
        one, many = (
            kept(steps(multi_sample.build(target, max_matches=matches), prompts, sampling))
            for matches in (1, 32)
        )
        assert many > one + 0.05
    assert sampled(8) > sampled(8, max_matches=1)


def test_options_that_mean_nothing_are_refused() -> None:
    for options in ({"min_ngram": 0}, {"min_ngram": 5}, {"min_share": 1.5}, {"nodes": 0}, {"max_matches": 0}):
        with pytest.raises(ValueError, match="give|keep"):
            multi_sample.build(model(), **options)


def test_defaults_are_the_papers() -> None:
    defaults = {name: option.default for name, option in multi_sample.options.items()}
    assert [defaults[name] for name in ("max_ngram", "min_ngram", "depth", "min_share")] == [4, 2, 10, 0.3]
