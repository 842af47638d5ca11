"""How many samples to vote, and with which draft length, measured on problems with known answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from outpace.api.branch_search import Outcome, Search, Setting, greedy_search
from outpace.api.model import as_model
from outpace.api.prompts import Prompt
from outpace.api.vote import METHOD, Vote, vote
from outpace.core.contracts import Recipe
from outpace.recipes import get, resolve_recipe

PLAIN = "autoregressive"  # the method of drafts of length 0
WARM_UP_TOKENS = 8  # of an untimed vote before each setting is measured


@dataclass(frozen=True)
class Problem:
    """A prompt and its answer, as the regular expression of `vote` finds it."""

    prompt: Prompt
    answer: str


@dataclass(frozen=True)
class VotePlan:
    """The result of a search for a setting."""

    recipe: Recipe
    options: Mapping[str, Any]  # of the method, without the draft length
    deadline: float
    search: Search

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values; `method`, `options` and `samples` are those of the best setting."""
        best = self.search.best
        method, options = method_of(self.recipe, self.options, best.depth)
        return {
            "method": method.name,
            "options": options,
            "samples": best.samples,
            "deadline": self.deadline,
            "tried": [
                asdict(setting) | asdict(outcome) for setting, outcome in sorted(self.search.tried.items())
            ],
        }


def method_of(recipe: Recipe, options: Mapping[str, Any], depth: int) -> tuple[Recipe, dict[str, Any]]:
    """The method and its options for drafts of this length: plain decoding for 0. ValueError if the method's
    length cannot be set."""
    if "depth" not in recipe.options:
        raise ValueError(
            f"{recipe.name} has no option depth: use latency-aware-tts, or a method that has one"
        )
    if depth == 0:
        return get(PLAIN), {}
    # a rule that shortens drafts while they are measured would hide what their length costs
    fixed = {"measured": False} if "measured" in recipe.options else {}
    return recipe, {**fixed, **options, "depth": depth}


def plan_votes(
    target: Any,
    problems: Sequence[Problem],
    method: str | Recipe = METHOD,
    *,
    deadline: float,
    max_samples: int = 16,
    max_depth: int = 8,
    max_step_seconds: float = inf,
    options: Mapping[str, Any] | None = None,
    on_vote: Callable[[Setting], None] = lambda setting: None,
    **given: Any,
) -> VotePlan:
    """Search for the number of samples and the draft length with the most right answers at a deadline, by
    votes on problems with known answers (see `outpace.api.branch_search`). All settings get the same
    problems and seeds; each is warmed up by a short vote that is not timed.

    Args:
        target: as in `outpace.generate`.
        problems: prompts with their answers.
        method: a method with an option depth.
        deadline: seconds of a vote.
        max_samples: most samples.
        max_depth: most draft tokens per step.
        max_step_seconds: longest mean time of a decoding step.
        options: the method's other options, such as draft.
        on_vote: called after each vote on a problem.
        **given: further arguments of `outpace.vote`, such as max_tokens, temperature, answer or seed.

    Raises ValueError for invalid values.
    """
    if not problems:
        raise ValueError("there are no problems to measure with: give some, with their answers")
    model, recipe, others = (
        as_model(target, given.pop("tokenizer", None)),
        resolve_recipe(method),
        options or {},
    )
    seed = given.pop("seed", None) or 0

    def voted(problem: Problem, setting: Setting, number: int, **more: Any) -> Vote:
        chosen, its_options = method_of(recipe, others, setting.depth)
        settings = {**given, "deadline": deadline, "seed": seed + number, **more, **its_options}
        return vote(model, problem.prompt, chosen, samples=setting.samples, **settings)

    def measure(setting: Setting) -> Outcome:
        short = min(WARM_UP_TOKENS, given.get("max_tokens") or WARM_UP_TOKENS)
        voted(problems[0], setting, 0, deadline=None, max_tokens=short)
        right = tokens = steps = 0
        seconds = 0.0
        for number, problem in enumerate(problems):
            found = voted(problem, setting, number)
            right += found.answer == problem.answer
            tokens += sum(len(branch.result.tokens) for branch in found.branches)
            steps += found.num_steps
            seconds += found.seconds
            on_vote(setting)
        return Outcome(
            accuracy=right / len(problems),
            tokens_per_second=tokens / setting.samples / max(seconds, 1e-9),
            step_seconds=seconds / max(steps, 1),
            num_tokens=tokens / len(problems),
        )

    method_of(recipe, others, 1)  # raises early if its length cannot be set
    search = greedy_search(
        measure, max_samples=max_samples, max_depth=max_depth, max_step_seconds=max_step_seconds
    )
    return VotePlan(recipe, dict(others), deadline, search)
