"""The distribution tests of a recipe: its options combined with sampling parameters, on table models and on
small transformers models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

from outpace.core.contract_checks import ContractError, check_sums
from outpace.core.contracts import Guarantee, Parts, Recipe, StatedProbs, Step, StepReference, Target
from outpace.core.sampling_params import SamplingParams
from outpace.models.table import TableTarget
from outpace.proof.decode_all import texts
from outpace.proof.enumerated_noise import NotRepeatable
from outpace.proof.enumeration import (
    Case,
    Enumeration,
    Leak,
    TooMany,
    enumerate_distributions,
    largest_difference,
    largest_error,
)
from outpace.proof.joint import Group, enumerate_joint, largest_joint_error, prove_together
from outpace.proof.models import (
    RECURRENT_CODES,
    Models,
    broad_tables,
    long_tables,
    peaked_tables,
    recurrent_models,
    tables,
    transformers_models,
    wide_tables,
)
from outpace.proof.mutants.catalogue import Mutant, variants
from outpace.proof.mutants.joint import JointMutant, joint_variants
from outpace.proof.mutants.late_faults import DEEP, deep_faults, wide_faults
from outpace.proof.mutants.rare_faults import rare_faults
from outpace.proof.mutants.recurrent_path import recurrent_mutants
from outpace.proof.mutants.transformers_path import transformers_mutants
from outpace.proof.option_values import choices, plain
from outpace.proof.per_row_controller import controllers_by_row
from outpace.proof.per_row_drafter import row_by_row
from outpace.proof.reference import promised
from outpace.proof.result import Proof
from outpace.proof.sampling_cases import crossed, paired
from outpace.proof.slots import fault_in_used_slots
from outpace.proof.with_prediction import predicting
from outpace.recipes import described, place

SMALL, QUICK, EXHAUSTIVE = 400, 3_000, 20_000  # maximum runs of one proof; one core does about 1000 a second
LONGEST = 18  # maximum number of new tokens of a request with temperature > 0
# the same where a reference is compared with plain decoding, which may have many more outcomes
COMPARED = 4
BATCH = 256  # rows decoded in one batch, one run each
PROMPTS = ((0, 1, 2, 0, 1), (2, 2), (1,), (1, 0, 2))
# prompts decoded before the test, for drafters that learn and for plans with `used`
HISTORY = ((0, 1, 2, 0, 1, 2), (2, 0, 1), (1, 1, 0), (2, 2))
MANY = 200  # number of steps decoded before the test in plans with `used`
CAUGHT = 1e-4  # error of a probability above which a mutant counts as detected
PART = 13  # number of requests in one proof of pairs of sampling parameters


def ragged(tokens: int, top_k: int = 0, prompt: tuple[int, ...] = (0, 1, 2, 0, 1, 2, 0)) -> list[Case]:
    """Four requests of different lengths, temperatures, limits and stop tokens, decoded in one batch;
    `prompt` is the first one's."""

    def params(temperature: float, max_tokens: int, stop: tuple[int, ...] = ()) -> SamplingParams:
        return SamplingParams(temperature, top_k=top_k, max_tokens=max_tokens, stop=stop)

    return [
        Case(prompt, params(1.0, tokens)),
        Case((2,), params(0.7, tokens - 1, (1,))),
        Case((1, 1, 0, 1, 1), params(0.0, tokens + 2)),
        Case((0, 2, 2), params(1.0, tokens - 1, (0, 2))),
    ]


def late(tokens: int) -> list[Case]:
    """Four requests like those of `ragged`, after prompts of up to 49 tokens and at temperatures above 1."""

    def params(temperature: float, max_tokens: int, stop: tuple[int, ...] = ()) -> SamplingParams:
        return SamplingParams(temperature, max_tokens=max_tokens, stop=stop)

    return [
        Case((0, 1, 2, 0, 1, 2, 0) * 7, params(1.5, tokens)),
        Case((2,), params(1.2, tokens - 1, (1,))),
        Case((1, 1, 0, 1, 1) * 4, params(0.0, tokens + 2)),
        Case((0, 2, 2) * 11, params(1.0, tokens)),
    ]


def two(tokens: int, top_k: int = 0) -> list[Case]:
    """A sampled and a greedy request, for wide trees, where more requests would take too many runs."""
    return [
        Case((0, 1, 2, 0, 1), SamplingParams(1.0, top_k=top_k, max_tokens=tokens)),
        Case((2,), SamplingParams(0.0, max_tokens=tokens)),
    ]


@dataclass(frozen=True)
class ProofPlan:
    """The combinations of options, sampling parameters and runs tested on one kind of models."""

    models: Callable[[], Models]
    shapes: tuple[tuple[int, ...], ...]  # widths per level of the draft trees; empty: the recipe's default
    more_shapes: tuple[tuple[int, ...], ...] = ()  # additional shapes of an exhaustive proof
    varied: bool = True  # also test with each option changed in turn
    factor: int = 1  # above 1: also change options of type int, to `factor` times their default
    numbers_only: bool = False  # change options of type int only
    any_options: bool = False  # in place of the default options, use the first that fit: see `_fitting`
    settings: int = 1  # number of option combinations that are also tested with sampling parameters
    alone: bool = True  # also test the default options with batches of one request
    top_k: int = 0  # top_k of the sampled requests: fewer continuations, so longer texts
    most: int = QUICK  # maximum runs of a proof with default options and one of the shapes
    most_varied: int = 300  # maximum runs of a proof with a changed option
    requests: Callable[[int], list[Case]] = ragged  # maximum number of new tokens -> requests
    narrower: Callable[[int], list[Case]] | None = None  # used where `requests` takes too many runs
    used: bool = False  # whether the parts decode hundreds of steps before the test
    predicted: bool = True  # also test with a predicted output
    more: int = 2_500  # maximum runs of a proof that is repeated as no draft was accepted at depth 2


PLANS = {
    "table": ProofPlan(tables, ((2,), (1, 2), (2, 1), (2, 2)), ((3, 1), (1, 1)), settings=2, alone=False),
    "peaked": ProofPlan(peaked_tables, (), factor=2, settings=0, most=1_000),
    "long": ProofPlan(
        long_tables,
        (),
        factor=3,
        numbers_only=True,
        alone=False,
        settings=0,
        most=150,
        most_varied=100,
        requests=late,
        used=True,
    ),
    "broad": ProofPlan(
        broad_tables,
        ((4,),),
        varied=False,
        alone=False,
        settings=0,
        most=300,
        requests=two,
        narrower=partial(two, top_k=2),  # for four draws with replacement
        predicted=False,
    ),
    "wide": ProofPlan(
        wide_tables,
        ((1, 1, 1),),
        varied=False,
        alone=False,
        settings=0,
        most=1_000,
        any_options=True,
    ),
    "transformers": ProofPlan(
        transformers_models,
        ((1, 2), (2, 1)),
        ((2, 2),),
        varied=False,
        settings=0,
        alone=False,  # some runs of every proof are repeated alone
        top_k=2,
        most=600,
    ),
    "window": ProofPlan(
        lambda: transformers_models(window=3),
        ((1, 2), (2, 1)),
        ((2, 2),),
        varied=False,
        settings=0,
        alone=False,
        top_k=2,
        most=600,
    ),
}


def prove(
    recipe: Recipe, models: Models, plan: ProofPlan = PLANS["table"], *, exhaustive: bool = False
) -> Iterator[Proof]:
    """Distribution tests of the recipe on these models, one Proof at a time: every option combination of the
    plan on a ragged batch; the default options also in batches of one request and with a predicted output;
    the first option combinations also with sampling parameters; a LOSSY method also at its exact limit.

    Texts are as long as the allowed number of runs permits, at most `LONGEST` tokens.
    """
    most = EXHAUSTIVE if exhaustive else plan.most
    shapes = (*plan.shapes, *plan.more_shapes) if exhaustive else plan.shapes
    options = list(choices(recipe, models, shapes, factor=plan.factor))
    if not (plan.varied or exhaustive or plan.any_options):
        options = options[: max(1, len(shapes))]
    if plan.numbers_only:
        first = options[0]
        options = [first, *(values for values in options if _changes_a_number(recipe, values, first))]
    requests = partial(ragged, top_k=plan.top_k) if plan.top_k else plan.requests
    if plan.top_k:  # in a draft copied from another prompt, top-k may exclude every token
        requests = partial(requests, prompt=models.greedy_text)

    def proven(subject: Subject, most: int, *, predicted: bool = False) -> Proof:
        proof = subject.prove(requests, most, predicted=predicted)
        if proof.as_promised and not proof.drafts:
            # repeat with longer texts (if top_k was 0, with top_k 2), or with one more possible token, as
            # drafts translated from another vocabulary may need it to be accepted twice in a row
            top_k = plan.top_k + 1 if plan.top_k else 2
            longer = partial(ragged, top_k=top_k, prompt=models.greedy_text)
            return subject.prove(longer, max(most, plan.more), predicted=predicted)
        return proof

    if plan.any_options:
        options = [_fitting(options, lambda values: proven(Subject(recipe, values, models), most))]
    default = Subject(recipe, options[0], models, plan.used, plan.narrower)
    first = default.in_used_slots(proven(default, most))
    yield first
    small = default.prove(requests, plan.most_varied) if plan.varied and not exhaustive else first
    for index, values in enumerate(options[1:], 1):
        varied = index >= len(shapes) and not exhaustive
        proof = proven(
            Subject(recipe, values, models, plan.used, plan.narrower), plan.most_varied if varied else most
        )
        counted = [
            (p.runs, p.outcomes, p.tokens, p.drafted, p.accepted, p.deepest)
            for p in (proof, small if varied else first)
        ]
        yield replace(proof, same_as_default=counted[0] == counted[1])
    if recipe.exact_with:
        yield exact_limit(recipe, models, most)
    if plan.alone or exhaustive:
        yield default.prove(requests, SMALL, batch=1)
    stated = recipe.build(models.target, **options[0]).reference
    # these hold for the method's own drafts only
    if plan.predicted and not isinstance(stated, StatedProbs | StepReference):
        yield proven(default, plan.most_varied, predicted=True)
    for index, values in enumerate(options):
        if index < plan.settings or exhaustive:
            # pairs of parameters for two shapes only: siblings at the first level, and siblings below a node
            yield from _prove_settings(Subject(recipe, values, models), most, pairs=exhaustive and index < 2)
    for values in options if (plan.varied and plan.factor == 1) or exhaustive else ():
        if recipe.build(models.target, **values).drafter.drafts_across_rows:
            yield from prove_together(recipe, values, models, exhaustive=exhaustive)


def _fitting(options: list[dict[str, Any]], prove: Callable[[dict[str, Any]], Proof]) -> dict[str, Any]:
    """The first options that can be proven in few runs and with accepted drafts; the defaults if there are
    none. Options whose proof fails for another reason are returned too, so that the failure is reported."""
    for values in options:
        proof = prove(values)
        too_large = proof.error is None and proof.fault.startswith("more than")
        if not (too_large or (proof.as_promised and not proof.drafts)):
            return values
    return options[0]


def _changes_a_number(recipe: Recipe, options: dict[str, Any], first: dict[str, Any]) -> bool:
    """Whether an option of type int has another value than in `first`."""
    defaults = {name: parameter.default for name, parameter in recipe.options.items()}
    pairs = [
        (defaults | options)[name] != (defaults | first)[name]
        for name in defaults
        if type(defaults[name]) is int
    ]
    return any(pairs)


def prove_default(recipe: Recipe, models: Models, most: int = 600) -> Proof:
    """One distribution test with the default options and at most `most` runs, and the test of used slots."""
    subject = Subject(recipe, next(choices(recipe, models)), models)
    return subject.in_used_slots(subject.prove(ragged, most))


def failed(recipe: Recipe, models: Models, error: Exception) -> Proof:
    """The report of proofs on these models that ended with an exception."""
    where = f"{place(error)}; " if place(error) else ""
    return replace(_empty(recipe, models), fault=f"{described(error)} ({where}--debug shows more)")


def _empty(recipe: Recipe, models: Models) -> Proof:
    return Proof(
        recipe=recipe.name,
        models=models.name,
        options={},
        temperatures=(),
        tokens=0,
        batch=BATCH,
        outcomes=0,
        runs=0,
        error=None,
        seconds=0.0,
    )


def exact_limit(recipe: Recipe, models: Models, most: int = 600) -> Proof:
    """One distribution test of a LOSSY recipe with the option values that make it EXACT: its distribution
    must be plain decoding's, and it must state no reference."""
    usual = next(choices(recipe, models))
    options = {**usual, **recipe.exact_with}
    proof = Subject(recipe, options, models).prove(ragged, most)
    if proof.loss is None:
        # at its exact limit, a rule with a StepReference accepts no draft
        by_steps = isinstance(recipe.build(models.target, **usual).reference, StepReference)
        return replace(proof, allowed=0) if by_steps else proof
    return replace(proof, fault="a reference is stated with the options of exact_with, which are to be EXACT")


def _prove_settings(subject: Subject, most: int, *, pairs: bool) -> Iterator[Proof]:
    """Tests with combinations of sampling parameters (`crossed`), sampled and greedy; with `pairs` also each
    parameter alone and every two of them."""
    vocab = subject.models.target.vocab

    def cases(params: list[SamplingParams]) -> list[Case]:
        return [Case(PROMPTS[index % len(PROMPTS)], row_params) for index, row_params in enumerate(params)]

    def all_crossed(tokens: int) -> list[Case]:
        params = list(crossed(vocab, tokens))
        return cases(params + [replace(row_params, temperature=0.0) for row_params in params])

    yield subject.prove(all_crossed, most, settings="crossed")
    if pairs:
        for start in range(0, len(list(paired(vocab, 2))), PART):

            def part(tokens: int, start: int = start) -> list[Case]:
                return cases(list(paired(vocab, tokens))[start : start + PART])

            yield subject.prove(part, most, settings="paired")


@dataclass(frozen=True)
class Subject:
    """A recipe with option values and the models it is tested on."""

    recipe: Recipe
    options: dict[str, Any]
    models: Models
    used: bool = False  # whether verifier and learning drafter decode hundreds of steps before the test
    narrower: Callable[[int], list[Case]] | None = None  # used where the given requests take too many runs

    def in_used_slots(self, proof: Proof) -> Proof:
        """The proof, or a FAILED one if a request is decoded differently in a slot that an ended request has
        used than in a new session."""
        if not proof.as_promised:
            return proof
        fault = fault_in_used_slots(lambda: self.recipe.build(self.models.target, **self.options))
        return replace(proof, fault=fault)

    def prove(
        self,
        cases_of: Callable[[int], list[Case]],  # maximum number of new tokens -> requests
        most: int,  # maximum number of runs
        batch: int = BATCH,
        settings: str = "",
        *,
        predicted: bool = False,
    ) -> Proof:
        """The distribution test on the longest texts that `most` runs permit; for a GREEDY method only at
        temperature 0. A Leak, NotRepeatable, TooMany or ContractError is reported as the proof's `fault`."""
        began, models = perf_counter(), self.models
        own = (models.target, *models.drafts, models.cross_vocabulary, models.cross_vocabulary.model)
        shared = (*own, *self.options.values())  # options may be draft heads
        earlier = partial(_earlier_requests, steps=MANY if self.used else 1)
        build = row_by_row(lambda: self.recipe.build(models.target, **self.options), earlier, shared)
        if self.used:
            build = _used(build, earlier, shared)
        build = controllers_by_row(build)
        parts = self.recipe.build(models.target, **self.options)
        drafter, reference = parts.drafter, parts.reference
        if predicted:
            build = predicting(build)
        proof = replace(
            _empty(self.recipe, models),
            options=plain(self.recipe, self.options),
            batch=batch,
            settings=settings,
            predicted=predicted,
            bound=models.bound,
        )
        requests = _all_greedy(cases_of) if parts.guarantee is Guarantee.GREEDY else cases_of
        if reference is not None and self.recipe.guarantee is not Guarantee.LOSSY:
            return replace(proof, fault="it states a reference: mark the recipe as LOSSY")
        if reference is None and parts.guarantee is Guarantee.LOSSY:
            return replace(proof, fault="it is LOSSY and states no reference: give Parts one")
        try:
            tokens, enumeration = _longest(
                lambda tokens, most: enumerate_distributions(
                    build,
                    requests(tokens),
                    batch=batch,
                    most=most,
                    bound=models.bound,
                    check=check_sums,
                    repeated=False,
                ),
                most,
            )
            enumeration.repeat()
        except (Leak, NotRepeatable, TooMany, ContractError) as error:
            if self.narrower is not None and isinstance(error, TooMany):
                return replace(self, narrower=None).prove(
                    self.narrower, most, batch, settings, predicted=predicted
                )
            return replace(proof, fault=str(error), seconds=perf_counter() - began)
        cases, counts = requests(tokens), enumeration.counts
        return replace(
            proof,
            temperatures=tuple(sorted({case.sampling.temperature for case in cases})),
            tokens=tokens,
            outcomes=sum(map(len, enumeration.distributions)),
            runs=enumeration.runs,
            error=largest_error(enumeration, promised(reference, models.logits), cases),
            seconds=perf_counter() - began,
            loss=None
            if reference is None
            else largest_difference(
                promised(reference, models.logits), models.logits, requests(min(tokens, COMPARED))
            ),
            # drafters that draft from other rows cannot draft here, as each row has its own drafter; with a
            # predicted output many drafts are the prediction, so acceptance is only required at depth 1
            allowed=0
            if drafter.drafts_across_rows
            else min(counts.allowed, 1)
            if predicted
            else counts.allowed,
            drafted=counts.drafted,
            accepted=counts.accepted,
            deepest=counts.deepest,
        )


def _all_greedy(cases_of: Callable[[int], list[Case]]) -> Callable[[int], list[Case]]:
    """A function that gives the requests of `cases_of`, each at temperature 0."""
    return lambda tokens: [
        replace(case, sampling=replace(case.sampling, temperature=0.0)) for case in cases_of(tokens)
    ]


def _longest(
    # (maximum number of new tokens, of runs) -> enumeration
    enumerate_texts: Callable[[int, int], Enumeration[tuple[int, ...]]],
    most: int,
) -> tuple[int, Enumeration[tuple[int, ...]]]:
    """(tokens, enumeration) for the longest texts that need at most `most` runs; texts of 2 tokens, the
    shortest, may need up to `QUICK`. Raises TooMany beyond that."""
    tokens = 3
    try:
        enumeration = enumerate_texts(tokens, most)
    except TooMany:
        return 2, enumerate_texts(2, max(most, QUICK))
    while tokens < LONGEST and 2 * enumeration.runs <= most:
        try:
            enumeration = enumerate_texts(tokens + 1, most)
        except TooMany:
            break
        tokens += 1
    return tokens, enumeration


def _used(
    build: Callable[[], Parts], earlier: Callable[[Parts], None], shared: Sequence[object]
) -> Callable[[], Parts]:
    """A function that returns the parts with a copy of a verifier that has seen the steps of `earlier`."""
    example = build()
    earlier(example)
    memo = {id(model): model for model in shared}
    return lambda: replace(build(), verifier=copy.deepcopy(example.verifier, dict(memo)))


def _earlier_requests(parts: Parts, steps: int) -> None:
    """Decode the prompts `HISTORY`, sampled and greedy, again and again for at least `steps` steps."""
    seen, seed = list[Step](), 0
    while len(seen) < steps:
        for temperature in (1.0, 0.0):
            sampling = [
                SamplingParams(temperature, max_tokens=8, seed=seed + row) for row in range(len(HISTORY))
            ]
            texts(parts, HISTORY, sampling, observe=seen.append)
        seed += len(HISTORY)


def mistakes(plans: Mapping[str, ProofPlan] = PLANS) -> dict[str, Callable[[], float]]:
    """Name of each mutant -> function that returns the largest error of its output distribution; above
    `CAUGHT` the mutant counts as detected."""
    models = tables()
    assert isinstance(models.target, TableTarget) and isinstance(models.drafts[0], TableTarget)
    tried = {
        mutant.name: partial(_mutant_error, mutant, models)
        for mutant in variants(models.target, models.drafts[0], models.cross_vocabulary)
    }
    tried |= {mutant.name: partial(_joint_error, mutant, models) for mutant in joint_variants(models.target)}
    for small, faults in ((peaked_tables(), deep_faults), (wide_tables(), wide_faults)):
        tried |= {name: partial(_late_error, build, small) for name, build in faults(small)}
    tried |= {name: partial(_planned_error, build, plans[kind]) for name, kind, build in rare_faults()}
    tried |= {
        mutant.name: lambda mutant=mutant: mutant.error(transformers_models(mutant.window))
        for mutant in transformers_mutants()
    }
    tried |= {
        mutant.name: lambda mutant=mutant, code=code: mutant.error(recurrent_models(code))
        for code in RECURRENT_CODES
        for mutant in recurrent_mutants(code)
    }
    return tried


def _mutant_error(mutant: Mutant, models: Models) -> float:
    cases = [
        Case((0, 1, 2, 0, 1), SamplingParams(**{"temperature": 0.7, "max_tokens": 3, **mutant.sampling})),
        Case((2, 2), SamplingParams(**{"temperature": 1.0, "max_tokens": 2, **mutant.sampling})),
    ]
    enumeration = enumerate_distributions(
        mutant.build, cases, noise=mutant.noise, target_probs=mutant.target_probs, replays=0
    )
    return largest_error(enumeration, models.logits, cases)


def _planned_error(build: Callable[[Target, Sequence[Target]], Parts], plan: ProofPlan) -> float:
    """The error that the plan's proof of the default options finds."""
    models = plan.models()

    def mutant(target: Target) -> Parts:
        return build(target, models.drafts)

    recipe = Recipe("mutant", "", "", "", Guarantee.EXACT, mutant)
    proof = Subject(recipe, {}, models, plan.used).prove(plan.requests, plan.most)
    assert proof.error is not None, proof.fault
    return proof.error


def _joint_error(mutant: JointMutant, models: Models) -> float:
    groups = [Group((1, 1), (SamplingParams(1.0, top_k=2, max_tokens=3),) * 2)]
    # one run per session: these mutants read the other rows of the batch, which must belong to the run
    enumeration = enumerate_joint(mutant.build, groups, noise=mutant.noise, batch=1, replays=0)
    return largest_joint_error(enumeration, models.logits, groups)


def _late_error(build: Callable[[], Parts], models: Models) -> float:
    cases = ragged(DEEP + 1)
    return largest_error(enumerate_distributions(build, cases, replays=0), models.logits, cases)
