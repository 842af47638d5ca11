"""What a plan measures here: acceptance, forwards of the target, and the rest of the steps of each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from torch import Tensor

from outpace.bench.measure.forward_cost import measure_forwards
from outpace.bench.measure.line_up import find
from outpace.bench.measure.method_names import with_draft
from outpace.bench.measure.metrics import Counts
from outpace.bench.report.usage import flags
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Guarantee, Parts, Target
from outpace.core.sampling_params import SamplingParams
from outpace.cost.drafts import Drafts
from outpace.cost.forward_seconds import Cell, MeasuredForwards
from outpace.models.heads.head_model import HeadModel
from outpace.models.heads.opened_head import OpenedHead
from outpace.models.heads.position_model import PositionModel
from outpace.models.hf.target import HFTarget
from outpace.plan.steps import ROUNDS, TimedStep, decoded_counts, lengthened, steps_in_turn
from outpace.recipes import Method, configure, own_options
from outpace.recipes._option_kinds import Opener

REPEATS = 5  # timed repetitions of every forward
MOST_TOKENS = 512  # of a timed forward; larger ones are extrapolated
PROBE_TOKENS = 16  # that are decoded to see what kind of drafts a method makes
LOOKUP_STEPS = 3  # timed steps per turn of a method whose drafts are not always of one length

Advance = Callable[[str, int], None]


@dataclass(frozen=True)
class BuiltMethod:
    """A method with its opened models."""

    name: str
    method: str  # of the recipe
    parts: Parts
    controller: Fixed
    drafters: Sequence[HFTarget | HeadModel | PositionModel]  # models and heads among its options
    shown: Mapping[str, Any]  # its options as a user gives them, without the draft length
    has_depth: bool  # whether users choose the draft length with --depth


def build(
    methods: Mapping[str, Method],  # by the names that they have in the plan
    target: Target,
    draft: str | None,
    opener: Opener,
) -> list[BuiltMethod]:
    """The methods with their models. ValueError for one that cannot be planned: it must be lossless and draft
    as much in every step."""
    found: list[BuiltMethod] = []
    for name, method in methods.items():
        recipe = find(method.name)
        own = replace(method, options=own_options(recipe, method.options))
        given = with_draft(own, recipe, draft)
        arguments = configure(recipe, target, given, opener)
        parts = recipe(target, **arguments)
        if parts.guarantee is Guarantee.LOSSY:
            raise ValueError(
                f"{method.label} changes the distribution of the output: plan for lossless methods"
            )
        if not isinstance(parts.controller, Fixed) or parts.schedule is not None:
            raise ValueError(
                f"{method.label} chooses what it drafts while it runs, which no plan foresees: plan for the "
                "methods that it chooses from, and compare it with outpace bench"
            )
        shown = {option: value for option, value in given.items() if option != "depth"}
        models = [
            each
            for value in arguments.values()
            for each in (value if isinstance(value, tuple) else (value,))
            if isinstance(each, HFTarget | OpenedHead)
        ]
        found.append(
            BuiltMethod(
                name,
                method.name,
                parts,
                parts.controller,
                [each for each in models if isinstance(each, HFTarget | HeadModel | PositionModel)],
                shown,
                "depth" in recipe.options,
            )
        )
    return found


def command(method: BuiltMethod, target: str) -> list[str]:
    """The words of a command line that generates with this method; {length} stands for the draft length."""
    name = method.method
    options = {**method.shown, **({"depth": "{length}"} if method.has_depth else {})}
    return ["outpace", "generate", "--target", target, "--method", name, *flags(options)]


@dataclass(frozen=True)
class Acceptance:
    """What a method drafts and what of it is accepted, measured by decoding each prompt alone."""

    drafts: Drafts
    ranks: Sequence[float]  # acceptance rate of each rank, of methods with trees of a fixed shape
    forwards: float  # of draft models for each draft token of a row, or level of a tree
    width: float  # tokens of a row in such a forward
    tested: int  # draft tokens that were accepted or the first to be rejected
    row_steps: int
    lengths: Sequence[int]  # of the drafts whose steps are to be timed; one: the method's own


def measure_acceptance(
    method: BuiltMethod,
    prompts: Sequence[Tensor],
    sampling: SamplingParams,
    longest: int,  # most draft tokens of a chain that are planned for
    *,
    after: Callable[[], None] = lambda: None,
) -> Acceptance:
    """Decode the prompts: a chain of a model as long as `longest`, anything else as the method has it."""
    own = method.controller
    parts = replace(method.parts, controller=Fixed(longest)) if own.shape is None else method.parts
    probe = replace(sampling, max_tokens=min(PROBE_TOKENS, sampling.max_tokens))
    is_cut = own.shape is None and _is_model_chain(decoded_counts(parts, prompts[:1], probe))
    counts = decoded_counts(parts if is_cut else method.parts, prompts, sampling, after=after)
    depth = max(counts.drafted_at, default=0)
    levels, is_tree = sum(counts.drafted_at.values()), counts.drafted > sum(counts.drafted_at.values())
    if is_cut:  # texts end within drafts: that is not the method's doing
        rates = (counts.accepted_at[n] / max(1, counts.offered_at[n]) for n in range(1, depth + 1))
        drafts = Drafts.chain(tuple(rates))
    else:
        steps = max(1, counts.row_steps)
        reached = tuple(counts.drafted_at[n] / steps for n in range(1, depth + 1))
        accepted = tuple(counts.accepted_at[n] / steps for n in range(1, depth + 1))
        nodes = counts.drafted / steps if is_tree else None
        drafts = Drafts(reached or (0.0,), accepted or (0.0,), nodes, can_be_cut=False)
    return Acceptance(
        drafts,
        counts.rank_rates() if own.shape is not None else (),
        counts.forwards / max(1, levels),
        counts.drafted / max(1, levels),
        sum(counts.offered_at.values()),
        counts.row_steps,
        sorted({1, (1 + depth) // 2, depth}) if is_cut else [max(1, own.depth)],
    )


def _is_model_chain(counts: Counts) -> bool:
    return counts.forwards > 0 and counts.drafted == sum(counts.drafted_at.values())


def forward_sizes(batches: Sequence[int], longest: int) -> list[int]:
    """Numbers of tokens of the timed forwards over one row: doubling, with one between two of them."""
    most = min(MOST_TOKENS, max(batches) * (longest + 1))
    sizes, size = {1, 2, 3, most}, 4
    while size < most:
        sizes |= {size, size * 3 // 2} if size * 3 // 2 < most else {size}
        size *= 2
    return sorted(each for each in sizes if each <= most)


def forward_cells(batches: Sequence[int], longest: int, context: int) -> Iterator[tuple[int, int, list[int]]]:
    """(Rows, committed tokens, tokens per row) of the forwards that are timed."""
    most = max(batches)
    yield 1, context, forward_sizes(batches, longest)
    if most > 1:
        yield most, context, sorted({1, min(longest, max(1, MOST_TOKENS // most)) + 1})
    if context >= 4:
        yield most, context // 2, [1]


def num_forwards(batches: Sequence[int], longest: int, context: int) -> int:
    """How often `measure_target` calls `after`."""
    return REPEATS * sum(len(sizes) for _, _, sizes in forward_cells(batches, longest, context))


def measure_target(
    target: Target,
    batches: Sequence[int],
    longest: int,  # most draft tokens of a row
    context: int,
    *,
    after: Callable[[], None] = lambda: None,
) -> MeasuredForwards:
    """Time forwards of the target with several numbers of tokens, rows and tokens of context, and fit the
    function that predicts the seconds of others."""
    measured: dict[Cell, float] = {}
    for rows, length, sizes in forward_cells(batches, longest, context):
        found = measure_forwards(
            {0: target},
            length=max(2, length),
            rows=rows,
            sizes=sizes,
            repeats=REPEATS,
            most_seconds=float("inf"),
            after=after,
        )
        for size, seconds in found[0].again.items():
            measured[size * rows, rows, length] = median(seconds)
    return MeasuredForwards.fit(measured, target.sizes, target.chain_sizes)


def timed_steps(
    methods: Mapping[str, tuple[Parts, Sequence[int]]],  # name -> parts, lengths of drafts
    prompts: Sequence[Tensor],
    sampling: SamplingParams,
    batches: Sequence[int],
    context: int,
    *,
    after: Callable[[], None] = lambda: None,
) -> dict[str, list[TimedStep]]:
    """Steps of all methods with one row and with the most rows, on texts of about `context` tokens."""
    longest = max(length for _, lengths in methods.values() for length in lengths)
    params = replace(sampling, max_tokens=max(4 * longest + 4, 32))
    texts = lengthened(prompts, max(2, context - params.max_tokens // 2))
    found = {name: list[TimedStep]() for name in methods}
    for rows in sorted({1, max(batches)}):
        turns = {name: (parts, _turn(parts, lengths)) for name, (parts, lengths) in methods.items()}
        for name, steps in steps_in_turn(turns, texts, rows=rows, sampling=params, after=after).items():
            found[name] += steps
    return found


def _turn(parts: Parts, lengths: Sequence[int]) -> Sequence[int]:
    is_shaped = isinstance(parts.controller, Fixed) and parts.controller.shape is not None
    return lengths if len(lengths) > 1 or is_shaped else [*lengths] * LOOKUP_STEPS


def num_turns(num_methods: int, batches: Sequence[int]) -> int:
    """How often `timed_steps` calls `after`."""
    return ROUNDS * num_methods * len({1, max(batches)})
