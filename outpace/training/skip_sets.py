"""Searches, for each domain of prompts, the skip set with which a target drafts its own text fastest
(`outpace index build --kind skip-sets`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outpace.controllers.confidence import Confidence
from outpace.core.contracts import Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.drafters.compose.planned_rows import SelfDraft
from outpace.drafters.model.draft_model import DraftModel
from outpace.engine.engine import Engine
from outpace.indexes.compiled_loops import Tokens
from outpace.models.skip_set import SkipSet
from outpace.models.slim.make import cost_without, num_layers, switching
from outpace.recipes.self_speculation.knn_ssd.recipe import alternate_layers, prompt_states
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors
from outpace.recipes.self_speculation.swift.gaussian_process import most_promising
from outpace.verifiers.match import Match

DEPTH, THRESHOLD = 12, 0.8  # longest draft; a draft ends at a token of lower draft probability
SEARCHED, TOKENS = 8, 32  # number of prompts per domain for the search, and tokens generated after each
NOISE = 1e-2  # relative variance of the speed that the search attributes to noise


def anchored(
    target: Target,
    domains: Iterable[Iterable[Tokens]],
    *,
    trials: int,
    on_trial: Callable[[], None] = lambda: None,
) -> SkipSetAnchors:
    """Build an anchor for each domain, given by its prompts, with the skip set that `best_set` finds on its
    first prompts. ValueError for a domain without prompts. `on_trial` is called after each trial."""
    vectors, sets = list[NDArray[np.float32]](), list[SkipSet]()
    for prompts in domains:
        texts = [torch.tensor(np.asarray(prompt, np.int64)) for prompt in prompts if len(prompt)]
        vectors.append(prompt_states(target, texts))
        sets.append(best_set(target, texts[:SEARCHED], trials=trials, on_trial=on_trial))
    return SkipSetAnchors.build(vectors, sets, num_layers(target))


def best_set(
    target: Target, prompts: Sequence[Tensor], *, trials: int, on_trial: Callable[[], None] = lambda: None
) -> SkipSet:
    """The set with the highest `speed` on these prompts, of those that a Gaussian process proposes over all
    sub-layers, beginning with every second layer and with each layer alone."""
    layers = num_layers(target)
    start = alternate_layers(layers)
    points = [_point(start, layers), *(_point(SkipSet.of_layers([layer]), layers) for layer in range(layers))]
    tried, values, speeds = list[list[float]](), list[float](), dict[SkipSet, float]()
    for trial in range(trials):
        point = points[trial] if trial < len(points) else most_promising(tried, values, noise=NOISE).tolist()
        skip_set = _set(point, layers)
        if skip_set not in speeds:
            speeds[skip_set] = speed(target, skip_set, prompts)
        tried.append(point)
        values.append(speeds[skip_set])
        on_trial()
    return max(speeds, key=speeds.__getitem__) if speeds else start


def speed(target: Target, skip_set: SkipSet, prompts: Sequence[Tensor]) -> float:
    """Tokens generated in the time of one forward of the target, if a forward takes the time to read its
    weights: `TOKENS` tokens after each prompt are decoded greedily with drafts of the target without these
    sub-layers, and forwards are counted. No times are measured, so the result is repeatable. 0 for a set that
    skips everything."""
    layers = num_layers(target)
    if not len(skip_set) or len(skip_set.layers) == layers:
        return 1.0 if not len(skip_set) else 0.0
    drafter = DraftModel(switching(target)(skip_set), sampled=False)
    parts = Parts(target, SelfDraft(drafter), Match(), Confidence(DEPTH, THRESHOLD))
    cost, generated, time = cost_without(target, skip_set), 0, 0.0
    for prompt in prompts:
        for step in Engine.of(parts, [prompt], [SamplingParams(max_tokens=TOKENS)]).steps():
            generated += len(step.generated[0])
            time += 1 + cost * step.draft.forwards
    return generated / time


def _point(skip_set: SkipSet, num_layers: int) -> list[float]:
    return [
        float(layer in skipped)
        for skipped in (skip_set.attention, skip_set.mlp)
        for layer in range(num_layers)
    ]


def _set(point: Sequence[float], num_layers: int) -> SkipSet:
    chosen = [index for index, value in enumerate(point) if value > 0.5]
    attention = frozenset(index for index in chosen if index < num_layers)
    return SkipSet(attention, frozenset(index - num_layers for index in chosen if index >= num_layers))
