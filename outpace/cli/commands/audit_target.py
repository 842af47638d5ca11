"""The tests of `outpace audit --target` on a user's model: greedy outputs and sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outpace.cli.output import print_status, print_table
from outpace.core.contracts import Guarantee, Parts, Recipe, Target
from outpace.models.vocabulary import CrossVocabularyDraft
from outpace.proof.draft_counts import DraftCounts
from outpace.proof.plain_logits import plain_logits

if TYPE_CHECKING:
    from outpace.api.model import Model

BATCH = 8  # number of requests decoded as one batch
TEMPERATURES = (1.0, 1.4)  # of the sampled texts, in turn
TESTS = 2  # tests of sampled tokens per method: on all tokens, and on the second half of each text
# dtypes to repeat greedy decoding in where outputs differ; the first that the model supports is used
DTYPES = ("float64", "float32")
SOURCE = ("revision", "trust_remote_code", "allow_pickle")


@dataclass(frozen=True)
class RealFixtures:
    """Implements outpace.recipes.Fixtures for a user's model: index files are built from `texts`."""

    target: Target
    texts: Sequence[Sequence[int]]
    folder: Path

    @property
    def drafts(self) -> tuple[Target, ...]:
        """Always empty: the user gives draft models by name."""
        return ()

    @property
    def deep_draft(self) -> Target:
        """Always raises ValueError: the user gives draft models by name."""
        raise ValueError("a draft model has to be named: give --draft")

    @property
    def cross_vocabulary(self) -> CrossVocabularyDraft:
        """Always raises ValueError: the user gives draft models by name."""
        raise ValueError("a draft model has to be named: give --draft")


def check_size(samples: int, max_tokens: int, false_alarms: float) -> None:
    """Raises ValueError if there are too few tokens for the tests, or `false_alarms` is no probability."""
    from outpace.proof.sampled_test import FEWEST

    if samples * (max_tokens - max_tokens // 2) < FEWEST:
        raise ValueError(
            f"{samples} texts of {max_tokens} tokens are too few to test: ask for {2 * FEWEST} tokens or more"
        )
    if not 0 < false_alarms < 1:
        raise ValueError(f"--false-alarms is a probability between 0 and 1, not {false_alarms}")


def check(
    recipes: Sequence[Recipe],
    name: str,
    draft: str | None,
    prompts: Sequence[str],
    max_tokens: int,
    samples: int,
    false_alarms: float,  # probability that any of the tests fails for correct methods
    **loading: Any,  # keyword arguments of outpace.load
) -> dict[str, Any]:
    """Test methods on a loaded model; returns the findings per method and the settings, as JSON values.

    Compares greedy outputs with plain decoding and tests sampled tokens against the model's distribution.
    The numbers are those that `check_size` accepts.
    """
    from outpace.api import load
    from outpace.api.prompts import encode

    model = load(name, **loading)
    tokens = [encode(model.tokenizer, prompt, model.target.vocab, "the prompt") for prompt in prompts]
    drafts = {"draft": draft, "drafts": draft}
    methods: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        audit = TargetAudit(
            model,
            tokens,
            max_tokens,
            samples,
            false_alarms / (TESTS * max(1, len(recipes))),
            folder,
            {name: loading[name] for name in SOURCE if name in loading},
        )
        for recipe in recipes:
            named = {option: drafts[option] for option in recipe.options if option in drafts}
            if any(value is None for value in named.values()):
                skipped.append({"method": recipe.name, "skipped": "needs --draft"})
                continue
            if recipe.guarantee is Guarantee.LOSSY:
                why = "is LOSSY: its texts are not the target's; the proofs compare it with what it states"
                skipped.append({"method": recipe.name, "skipped": why})
                continue
            try:
                methods.append(audit.method(recipe, named))
            except ValueError as error:  # a method that refuses this model must not end the audit of the rest
                if len(recipes) == 1:
                    raise
                skipped.append({"method": recipe.name, "skipped": str(error)})
                continue
            print_status(f"{recipe.name} on {name}: {verdict(methods[-1])}")
    return {
        "target": name,
        "draft": draft,
        "dtype": str(next(model.target.model.parameters()).dtype).removeprefix("torch."),
        "prompts": list(prompts),
        "max_tokens": max_tokens,
        "false_alarms": false_alarms,
        "methods": methods,
        "skipped": skipped,
    }


@dataclass
class TargetAudit:
    """Tests methods on one loaded model."""

    model: Model
    prompts: list[list[int]]
    max_tokens: int
    samples: int
    false_alarms: float  # significance level of one test
    folder: Path  # folder of temporary index files
    source: dict[str, Any]  # keyword arguments with which `outpace.load` finds the model again

    def method(self, recipe: Recipe, named: dict[str, Any]) -> dict[str, Any]:
        """Findings about one method as JSON values; `named`: draft models by option name."""
        apart, replayed_in = self._divergences(recipe, named)
        # a GREEDY method promises nothing at other temperatures
        greedy = recipe.guarantee is Guarantee.GREEDY
        tests, counts = ({}, DraftCounts()) if greedy else self._sampled(recipe, named)
        bugs = sum(each["rounding"] is False for each in apart)
        return {
            "method": recipe.name,
            "divergences": apart,
            "replayed_in": replayed_in,
            "bugs": bugs,
            "sampling": tests,
            "drafted": counts.drafted,
            "accepted": counts.accepted,
            "deepest": counts.deepest,
            "holds": not bugs and all(test["holds"] for test in tests.values()),
        }

    def _builds(
        self, recipe: Recipe, named: dict[str, Any], model: Model
    ) -> tuple[Callable[[], Parts], Callable[[], Parts]]:
        """Two functions that build the parts of plain decoding and of the method on `model`."""
        from outpace.api.opener import ModelOpener
        from outpace.recipes import configure, get
        from outpace.recipes._option_kinds import kinds_in
        from outpace.recipes._options import hints_of

        indexes: dict[str, Any] = {}
        for option, hint in hints_of(recipe).items():
            if option in recipe.options and option not in named:
                # heads are given, or they are the target's own
                for kind in (kind for kind in kinds_in(hint) if kind.essential and not kind.heads):
                    indexes[option] = kind.fixture(RealFixtures(model.target, self._texts(), self.folder))
        options = configure(recipe, model.target, named | indexes, ModelOpener(model))
        plain = get("autoregressive")
        return (lambda: plain.build(model.target)), (lambda: recipe.build(model.target, **options))

    def _texts(self) -> list[list[int]]:
        """Prompts with continuations sampled by plain decoding (other seeds than the test's), for indexes."""
        from outpace.core.sampling_params import SamplingParams
        from outpace.proof.decode_all import texts
        from outpace.recipes import get

        parts = get("autoregressive").build(self.model.target)
        sampling = [
            SamplingParams(1.0, max_tokens=self.max_tokens, seed=-1 - seed)
            for seed in range(len(self.prompts))
        ]
        found = texts(parts, self.prompts, sampling)
        return [[*prompt, *text] for prompt, text in zip(self.prompts, found, strict=True)]

    def _divergences(self, recipe: Recipe, named: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
        """Positions where greedy outputs differ from plain decoding, and the dtype of the repeated decoding
        that separates rounding from bugs (None if nothing differs or no dtype works)."""
        from outpace.api import load
        from outpace.proof.greedy_divergence import divergences

        plain, method = self._builds(recipe, named, self.model)

        def logits(text: Sequence[int]) -> Tensor:
            return plain_logits(self.model.target, text)[-1]

        for dtype in DTYPES:
            try:
                found = divergences(
                    plain,
                    method,
                    self.prompts,
                    self.max_tokens,
                    logits,
                    lambda dtype=dtype: self._builds(
                        recipe, named, load(self.model.name, dtype=dtype, **self.source)
                    ),
                )
            except (RuntimeError, NotImplementedError) as error:
                # some kernels do not support float64, such as transformers' grouped experts
                print_status(f"{recipe.name}: {self.model.name} does not run in {dtype} ({error})")
                continue
            return [asdict(each) for each in found], dtype if found else None
        found = divergences(plain, method, self.prompts, self.max_tokens, logits)
        return [asdict(each) for each in found], None

    def _sampled(self, recipe: Recipe, named: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], Any]:
        """G-tests of sampled tokens against the model's distribution, and counts of draft tokens.

        All batches share one set of parts, so that indexes filled by earlier requests are tested too.
        """
        from outpace.core.sampling_params import SamplingParams
        from outpace.proof.decode_all import texts
        from outpace.proof.sampled_test import g_test, uniform_values

        counts = DraftCounts()
        parts = counts.watch(self._builds(recipe, named, self.model)[1]())
        temperatures = [TEMPERATURES[index % len(TEMPERATURES)] for index in range(self.samples)]
        sampling = [
            SamplingParams(temperature, max_tokens=self.max_tokens, seed=seed)
            for seed, temperature in enumerate(temperatures)
        ]
        prompts = [self.prompts[index % len(self.prompts)] for index in range(self.samples)]
        generator = torch.Generator().manual_seed(0)
        everything, late = list[float](), list[float]()
        for first in range(0, self.samples, BATCH):
            part = slice(first, first + BATCH)
            found = texts(parts, prompts[part], sampling[part], observe=counts.add)
            for prompt, text, temperature in zip(prompts[part], found, temperatures[part], strict=True):
                logits = plain_logits(self.model.target, [*prompt, *text])[len(prompt) - 1 : -1]
                values = uniform_values((logits / temperature).softmax(-1), text, generator)
                everything += values
                late += values[self.max_tokens // 2 :]
        tests = {"all": g_test(everything, self.false_alarms), "late": g_test(late, self.false_alarms)}
        return {name: {**asdict(test), "holds": test.holds} for name, test in tests.items()}, counts


def verdict(check: dict[str, Any]) -> str:
    """One phrase on the findings about a method: "no deviation" or the reason of the failure."""
    if check["bugs"]:
        return "FAILED: greedy texts differ from plain decoding's, and not by rounding"
    if not check["holds"]:
        worst = min(test["p_value"] for test in check["sampling"].values())
        return f"FAILED: sampled tokens do not follow the model's distribution (p-value {worst:.1g})"
    return "no deviation"


def print_checks(report: dict[str, Any]) -> None:
    """Print the findings on the user's model as tables."""
    rows = []
    for check in report["methods"]:
        tests = check["sampling"]
        greedy = f"{len(report['prompts']) - len(check['divergences'])} of {len(report['prompts'])}"
        gap = max((abs(each["gap"]) for each in check["divergences"]), default=0.0)
        p_values = [f"{tests[name]['p_value']:.2g}" if tests else "-" for name in ("all", "late")]
        counts = [str(check[name]) for name in ("drafted", "accepted", "deepest")]
        detects, tokens = "-", "0"
        if tests:
            detects, tokens = f"{tests['all']['detects']:.3f}", str(tests["all"]["tokens"])
        rows.append(
            (check["method"], greedy, f"{gap:.2g}", tokens, *counts, *p_values, detects, verdict(check))
        )
    columns = (
        *("method", "greedy texts equal", "largest logit gap", "sampled tokens", "drafted", "accepted"),
        *("deepest", "p-value", "p-value, second halves", "detects", ""),
    )
    title = (
        f"{report['target']}, {report['dtype']}; "
        f"a correct audit fails with probability {report['false_alarms']}"
    )
    print_table(columns, rows, title)
    for each in report["skipped"]:
        print_table(("not tested", "why"), [(each["method"], each["skipped"])])
