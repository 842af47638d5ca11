"""The part of `outpace audit` that tests methods on a user's model: greedy texts and sampled tokens."""

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
from outpace.core.contracts import Parts, Recipe, Target
from outpace.models.vocabulary import CrossVocabularyDraft

if TYPE_CHECKING:
    from outpace.api.model import Model

BATCH = 8  # requests decoded together
TESTS = 2  # of sampled tokens, a method: all of them, and those in the second half of each text
DTYPES = (
    "float64",
    "float32",
)  # in which greedy texts that differ are decoded again; the first one that works


@dataclass(frozen=True)
class RealFixtures:
    """outpace.recipes.Fixtures of a user's model: index files are made from its own texts."""

    target: Target
    texts: Sequence[Sequence[int]]
    folder: Path

    @property
    def drafts(self) -> tuple[Target, ...]:
        """None: drafts are named by the user."""
        return ()

    @property
    def cross_vocabulary(self) -> CrossVocabularyDraft:
        """None: drafts are named by the user."""
        raise ValueError("a draft model has to be named: give --draft")


def check(
    recipes: Sequence[Recipe],
    name: str,
    draft: str | None,
    prompts: Sequence[str],
    max_tokens: int,
    samples: int,
    false_alarms: float,  # of all tests together
    **loading: Any,  # arguments of outpace.load
) -> dict[str, Any]:
    """Per method where greedy texts differ from plain decoding's, and whether sampled ones follow the
    distribution."""
    from outpace.api import load
    from outpace.api.prompts import encode
    from outpace.proof.sampled_test import FEWEST

    if samples * (max_tokens - max_tokens // 2) < FEWEST:
        raise ValueError(
            f"{samples} texts of {max_tokens} tokens are too few to test: ask for {2 * FEWEST} tokens or more"
        )
    model = load(name, **loading)
    tokens = [encode(model.tokenizer, prompt, model.target.vocab, "the prompt") for prompt in prompts]
    drafts = {"draft": draft, "drafts": draft}
    methods: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        audit = TargetAudit(
            model, tokens, max_tokens, samples, false_alarms / (TESTS * max(1, len(recipes))), folder
        )
        for recipe in recipes:
            named = {option: drafts[option] for option in recipe.options if option in drafts}
            if any(value is None for value in named.values()):
                skipped.append({"method": recipe.name, "skipped": "needs --draft"})
                continue
            methods.append(audit.method(recipe, named))
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
    """The tests of methods on one loaded model."""

    model: Model
    prompts: list[list[int]]
    max_tokens: int
    samples: int
    false_alarms: float  # of one test
    folder: Path

    def method(self, recipe: Recipe, named: dict[str, Any]) -> dict[str, Any]:
        """The findings about one method; `named` are its draft models."""
        apart, replayed_in = self._divergences(recipe, named)
        tests, counts = self._sampled(recipe, named)
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
        """Plain decoding and the method, on this model."""
        from outpace.api.opener import ModelOpener
        from outpace.recipes import configure, get
        from outpace.recipes._option_kinds import kinds_in
        from outpace.recipes._options import hints_of

        indexes: dict[str, Any] = {}
        for option, hint in hints_of(recipe).items():
            if option in recipe.options and option not in named:
                for kind in (kind for kind in kinds_in(hint) if kind.essential):
                    indexes[option] = kind.fixture(RealFixtures(model.target, self._texts(), self.folder))
        options = configure(recipe, model.target, named | indexes, ModelOpener(model))
        plain = get("autoregressive")
        return (lambda: plain.build(model.target)), (lambda: recipe.build(model.target, **options))

    def _texts(self) -> list[list[int]]:
        """Texts of the model's own, sampled by plain decoding with other seeds than those of the test."""
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
        """Where greedy texts differ from plain decoding's, and the dtype in which these were decoded
        again."""
        from outpace.api import load
        from outpace.proof.greedy_divergence import divergences

        plain, method = self._builds(recipe, named, self.model)

        def logits(text: Sequence[int]) -> Tensor:
            return forward(self.model.target, text)[-1]

        for dtype in DTYPES:
            try:
                found = divergences(
                    plain,
                    method,
                    self.prompts,
                    self.max_tokens,
                    logits,
                    lambda dtype=dtype: self._builds(recipe, named, load(self.model.name, dtype=dtype)),
                )
            except (RuntimeError, NotImplementedError) as error:
                # some kernels refuse float64: transformers' grouped experts
                print_status(f"{recipe.name}: {self.model.name} does not run in {dtype} ({error})")
                continue
            return [asdict(each) for each in found], dtype if found else None
        found = divergences(plain, method, self.prompts, self.max_tokens, logits)
        return [asdict(each) for each in found], None

    def _sampled(self, recipe: Recipe, named: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], Any]:
        """Tests of sampled tokens; the parts stay the same, so methods draft from what they have learnt."""
        from outpace.core.sampling_params import SamplingParams
        from outpace.proof.decode_all import texts
        from outpace.proof.draft_counts import DraftCounts
        from outpace.proof.sampled_test import g_test, uniform_values

        counts = DraftCounts()
        parts = counts.watch(self._builds(recipe, named, self.model)[1]())
        sampling = [
            SamplingParams(1.0, max_tokens=self.max_tokens, seed=seed) for seed in range(self.samples)
        ]
        prompts = [self.prompts[index % len(self.prompts)] for index in range(self.samples)]
        generator = torch.Generator().manual_seed(0)
        everything, late = list[float](), list[float]()
        for first in range(0, self.samples, BATCH):
            part = slice(first, first + BATCH)
            found = texts(parts, prompts[part], sampling[part], observe=counts.add)
            for prompt, text in zip(prompts[part], found, strict=True):
                probs = forward(self.model.target, [*prompt, *text])[len(prompt) - 1 : -1].softmax(-1)
                values = uniform_values(probs, text, generator)
                everything += values
                late += values[self.max_tokens // 2 :]
        tests = {"all": g_test(everything, self.false_alarms), "late": g_test(late, self.false_alarms)}
        return {name: {**asdict(test), "holds": test.holds} for name, test in tests.items()}, counts


def forward(target: Any, text: Sequence[int]) -> Tensor:  # (T, V)
    """The model's own logits, computed without the engine: its own attention, no KV cache."""
    with torch.inference_mode():
        logits = target.model(torch.tensor([list(text)], device=target.device), use_cache=False).logits[0]
    return logits.double().cpu()


def verdict(check: dict[str, Any]) -> str:
    """The findings about one method in a few words."""
    if check["bugs"]:
        return "FAILED: greedy texts differ from plain decoding's, and not by rounding"
    if not check["holds"]:
        worst = min(test["p_value"] for test in check["sampling"].values())
        return f"FAILED: sampled tokens do not follow the model's distribution (p-value {worst:.1g})"
    return "no deviation"


def print_checks(report: dict[str, Any]) -> None:
    """The findings on the user's model as tables."""
    rows = []
    for check in report["methods"]:
        tests = check["sampling"]
        greedy = f"{len(report['prompts']) - len(check['divergences'])} of {len(report['prompts'])}"
        gap = max((abs(each["gap"]) for each in check["divergences"]), default=0.0)
        p_values = [f"{tests[name]['p_value']:.2g}" for name in ("all", "late")]
        counts = [str(check[name]) for name in ("drafted", "accepted", "deepest")]
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
