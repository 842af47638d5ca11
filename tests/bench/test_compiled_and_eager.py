"""Compiled and eager rows: the baseline of each row, and the cost curve its drafts are chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.bootstrap import Interval
from outpace.bench.measure.contender import COMPILED, EAGER, RunOutcome
from outpace.bench.measure.forward_cost import Timings
from outpace.bench.measure.ideal import DRAFT, TARGET, ideal_seconds
from outpace.bench.measure.measurement import Measurement
from outpace.bench.measure.metrics import Counts, StepCost, StepRecord
from outpace.bench.measure.recommend import MethodChoice
from outpace.bench.measure.run import EncodedPrompt, Run, Trial
from outpace.bench.report.html import EAGER_OURS, bars
from outpace.bench.report.model_tables import preparation
from outpace.bench.report.report import to_json, to_markdown
from outpace.bench.report.summary import ALL, VARIED, ResultRow
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
from outpace.cost.cost_curve import CostCurve
from outpace.tables import markdown

ITS_OWN = {COMPILED: (10, 11, 12), EAGER: (20, 21, 22)}  # how the two modes' texts end


@dataclass
class Named:
    name: str
    mode: str
    kind: str = "outpace"
    options: dict[str, Any] = field(default_factory=dict)
    single: bool = False
    precision: str = ""

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        raise RuntimeError("it broke")

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return AcceptanceBound()

    def lossless(self, temperature: float) -> bool:
        return True

    def reset(self) -> None:
        pass


PLAIN, AS_IT_IS = Named("plain", COMPILED), Named(f"plain ({EAGER})", EAGER)
CHAIN, CHAIN_AS_IT_IS = Named("chain", COMPILED), Named(f"chain ({EAGER})", EAGER)
PEER = Named("peer", "", kind="peer")
SECONDS = {PLAIN.name: 1.0, AS_IT_IS.name: 2.0, CHAIN.name: 0.5, CHAIN_AS_IT_IS.name: 1.6, PEER.name: 3.0}


def made(who: Named, case: EncodedPrompt, index: int) -> Run:
    """A chain gains three tokens a step, and the text depends on the mode alone."""
    length = 1 if "plain" in who.name or who is PEER else 3
    chain = StepRecord(Forest.chain((length - 1,)), (length - 1,), (length,), length - 1, 0.0, {})
    counts = None if who is PEER else Counts.of([chain] * (12 // length))
    text = (*range(9), *ITS_OWN.get(who.mode, (0, 0, 0)))
    return Run(
        who.name,
        Trial(index, (case,), 0.0, 0),
        SECONDS[who.name],
        None if who is PEER else 0.0,
        None if who is PEER else 0,
        counts,
        (text,),
    )


def measured(*left_out: Named) -> Measurement:
    """Compiled, a forward over three tokens costs as much as one; eager three times as much."""
    everybody = [PLAIN, AS_IT_IS, CHAIN, CHAIN_AS_IT_IS, PEER]
    cases = [EncodedPrompt(f"p{index}", "code", torch.zeros(3, dtype=torch.int64)) for index in range(4)]
    return Measurement(
        contenders=everybody,
        cases=cases,
        sampling=SamplingParams(max_tokens=12),
        temperatures=[0.0],
        rounds=1,
        batch=1,
        seed=0,
        choices={
            "plain": MethodChoice("autoregressive", {}, None),
            "chain": MethodChoice("speculative-sampling", {}, "small"),
        },
        provenance={
            "versions": {},
            "device": "a CPU",
            "threads": 1,
            "commit": None,
            "date": "today",
            "argv": [],
        },
        load_seconds={"target": 1.5},
        compile_seconds={"target": 2.5},
        timings={
            (TARGET, COMPILED): flat(1.0, 1.0),
            (DRAFT, COMPILED): flat(0.1, 0.1),
            (TARGET, EAGER): flat(2.0, 6.0),
            (DRAFT, EAGER): flat(0.5, 0.5),
        },
        runs=[
            made(who, case, index)
            for index, case in enumerate(cases)
            for who in everybody
            if who not in left_out
        ],
    )


def flat(one: float, three: float) -> Timings:
    return Timings({1: [one], 3: [three]}, {1: [one + 1], 3: [three + 1]})


def rows_of(measurement: Measurement) -> dict[str, ResultRow]:
    return {row.contender: row for row in measurement.rows() if row.selection == "all"}


def test_all_are_compared_with_compiled_plain_decoding() -> None:
    rows = rows_of(measured())
    assert {name: row.speedup.median for name, row in rows.items()} == {
        "plain": 1.0,
        "plain (eager)": 0.5,
        "chain": 2.0,
        "chain (eager)": 0.625,
        "peer": pytest.approx(1 / 3),
    }
    assert {name: row.mode for name, row in rows.items()} == {
        "plain": COMPILED,
        "plain (eager)": EAGER,
        "chain": COMPILED,
        "chain (eager)": EAGER,
        "peer": "",
    }


def median_of(row: ResultRow) -> float | None:
    return row.efficiency.median if row.efficiency else None


def test_efficiency_is_about_one_mode() -> None:
    rows = rows_of(measured())
    assert rows["plain"].efficiency is rows["plain (eager)"].efficiency is None  # nothing was drafted
    # 3 tokens a step, which costs t(3) + 2 draft forwards; both against plain decoding in the same mode
    assert median_of(rows["chain"]) == pytest.approx(2.0 / (3 * 1.0 / 1.2))
    assert rows["chain (eager)"].decode_speedup == 1.25
    assert median_of(rows["chain (eager)"]) == pytest.approx(1.25 / (3 * 2.0 / 7.0))


def test_texts_are_compared_within_a_mode_and_those_of_plain_decoding_across() -> None:
    found = {name: (row.different, row.first_difference) for name, row in rows_of(measured()).items()}
    assert found == {
        "plain": (0, None),
        "plain (eager)": (4, 9),
        "chain": (0, None),
        "chain (eager)": (0, None),
        "peer": (4, 9),
    }


def test_without_plain_decoding_in_its_mode_a_row_has_no_efficiency() -> None:
    row = rows_of(measured(AS_IT_IS))["chain (eager)"]
    assert row.speedup.median == 0.625
    assert row.efficiency is None and row.different is None


def test_trees_and_chains_are_chosen_from_the_curve_of_their_mode() -> None:
    measurement = measured()
    rows = measurement.rows()
    trees, chains = measurement.trees(rows), measurement.chains(rows)
    assert set(trees) == set(chains) == {"chain", "chain (eager)"}
    assert trees["chain"].shape.parents == chains["chain"].shape.parents == (0, 1)
    assert trees["chain (eager)"].shape.parents == ()  # t(3) = 3 t(1): drafts cannot win
    measurement.timings[TARGET, EAGER] = measurement.timings[TARGET, COMPILED]
    measurement.timings[DRAFT, EAGER] = flat(0.01, 0.01)
    assert measurement.trees(rows)["chain (eager)"].shape.parents == (0, 1)


def test_a_tree_that_is_filled_without_a_model_is_chosen_too() -> None:
    measurement = measured()
    for run in measurement.runs:
        if run.counts:
            run.counts.forwards = 0
    assert measurement.trees(measurement.rows()) == {}  # no method here takes a tree
    measurement.contenders = [
        replace(who, options={"parents": None}) if who in (CHAIN, CHAIN_AS_IT_IS) else who
        for who in (PLAIN, AS_IT_IS, CHAIN, CHAIN_AS_IT_IS, PEER)
    ]
    rows = measurement.rows()
    assert measurement.chains(rows) == {}  # it has no depth
    found = measurement.trees(rows)
    assert {name: tree.shape.parents for name, tree in found.items()} == {
        "chain": (0, 1),
        "chain (eager)": (),
    }
    # of three nodes on a path two had a child, which was right; a forward over three tokens costs as much as
    # one
    assert found["chain"].speedup == pytest.approx(1 + 2 / 3 + (2 / 3) ** 2)


def test_only_methods_in_the_requested_mode_are_recommended() -> None:
    measurement = measured()
    assert measurement.recommendation(measurement.rows()).method == "speculative-sampling"
    measurement.runs = measured(CHAIN).runs
    assert measurement.recommendation(measurement.rows()).method is None


def test_nothing_is_recommended_if_other_programs_ran() -> None:
    measurement = measured()
    measurement.loads = [900.0, 1000.0]
    found = measurement.recommendation(measurement.rows())
    assert found.method is None
    assert found.reason.startswith(
        "no recommendation: other programs used the machine during the runs (in the"
    )
    assert measurement.answers(measurement.rows())[-1] == "N" + found.reason[1:]


def test_the_gain_of_compiling_is_reported_if_both_modes_were_measured() -> None:
    both = measured()
    gain = both.compiling(both.rows())
    assert gain and (gain.low, gain.median, gain.high) == (2.0, 2.0, 2.0)
    assert "plain decoding is 2.00 times as fast" in both.answers(both.rows())[0]
    alone = measured(AS_IT_IS, CHAIN_AS_IT_IS)
    assert alone.compiling(alone.rows()) is None and len(alone.answers(alone.rows())) == 1


def test_the_interval_of_the_gain_of_compiling_is_that_of_the_slowdown_inverted() -> None:
    both = measured()
    rows = [
        replace(row, speedup=Interval(0.5, 0.4, 0.8)) if row.contender == AS_IT_IS.name else row
        for row in both.rows()
    ]
    assert both.compiling(rows) == Interval(2.0, 1.25, 2.5)


def test_the_rows_of_the_selection_are_marked_in_the_file() -> None:
    for selection in (ALL, VARIED):
        both = measured()
        both.selection = selection
        found = {(row["selection"], row["headline"]) for row in to_json(both, both.rows())["results"]}
        assert found == {(ALL, selection == ALL), (VARIED, selection == VARIED)}


def test_the_cost_of_a_step_is_read_at_the_nodes_of_one_row() -> None:
    target, draft = CostCurve({1: 1.0, 4: 4.0}), CostCurve({1: 0.1, 4: 0.4})
    cost = StepCost(rows=2, nodes=6, forwards=2, levels=(2, 4))
    assert ideal_seconds(cost, target, draft, 9.0) == pytest.approx(3.0 + 0.1 + 0.2)
    assert ideal_seconds(cost, target, None, 9.0) == pytest.approx(3.0 + 2 * 9.0)


def test_compiling_is_not_mentioned_if_nothing_was_compiled() -> None:
    measurement = measured(PLAIN, CHAIN)
    measurement.contenders = [AS_IT_IS, CHAIN_AS_IT_IS]
    rows = measurement.rows()
    assert measurement.compiling(rows) is None
    assert "compiled plain decoding" not in to_markdown(measurement, rows)


def test_files_and_pages_show_the_mode() -> None:
    measurement = measured()
    rows = measurement.rows()
    data = to_json(measurement, rows)
    assert {row["method"]: row["mode"] for row in data["results"]} == {
        "plain": "compiled",
        "plain (eager)": "eager",
        "chain": "compiled",
        "chain (eager)": "eager",
        "peer": None,
    }
    assert data["milliseconds_by_nodes"]["target (eager)"] == {"1": 2000, "3": 6000}
    assert data["milliseconds_after_another_size"]["draft"] == {"1": 1100, "3": 1100}
    assert data["load_seconds"] == {"target": 1.5} and data["compile_seconds"] == {"target": 2.5}
    assert data["best_trees"]["chain"]["parents"] == (0, 1) == data["best_chains"]["chain"]["parents"]
    page = to_markdown(measurement, rows)
    assert "| target | 1.50 | 2.50 |" in page and "| target (eager) | 2000.00 | 6000.00 |" in page
    assert "compiled plain decoding" in page
    pale = [bar for bar in bars(rows) if bar.colour == EAGER_OURS]
    assert len(pale) == 4  # two rows, under each selection of prompts
    only_eager = bars([row for row in rows if row.mode != COMPILED])
    assert only_eager and EAGER_OURS not in {bar.colour for bar in only_eager}


def test_a_mode_that_cannot_start_is_left_out_and_compiled_plain_decoding_must() -> None:
    measurement = measured()
    measurement.runs = []
    assert not measurement._works(AS_IT_IS) and "it broke" in measurement.failed[AS_IT_IS.name]
    assert set(measurement.warm_up_seconds) == {AS_IT_IS.name}
    with pytest.raises(RuntimeError):
        measurement._works(PLAIN)


def test_getting_ready_is_a_table_of_its_own() -> None:
    given: dict[str, Any] = {"loading": {"target": 1.0, "peer": 2.0}, "warm_up": {"plain": 0.5, "chain": 1.0}}
    text = markdown(preparation(compiling={"target": 3.25}, **given))
    assert (
        "| target | 1.00 | 3.25 |" in text
        and "| peer | 2.00 | - |" in text
        and "Warming up took 1.5 s." in text
    )
    assert "compiling" not in markdown(preparation(compiling={}, **given))
