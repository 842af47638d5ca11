"""From runs to rows, tables and one recommendation, on runs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.contender import RunOutcome
from outpace.bench.measure.metrics import Counts, StepRecord
from outpace.bench.measure.recommend import MethodChoice, recommend
from outpace.bench.measure.run import EncodedPrompt, Run, Trial
from outpace.bench.report.summary import ALL, VARIED, ResultRow, headline, summarise
from outpace.bench.report.tables import TOO_FEW, notes, tables
from outpace.console import progress
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
from outpace.cost.cost_curve import CostCurve
from outpace.tables import markdown, print_tables

VARIETY, LOOP = tuple(range(40)), (7,) * 40


@dataclass
class Named:
    name: str
    keeps_the_distribution: bool = True
    kind: str = "outpace"
    options: dict[str, int] = field(default_factory=dict)
    single: bool = False
    precision: str = ""
    mode: str = "eager"

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        raise AssertionError("nothing is run here")

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return AcceptanceBound()

    def lossless(self, temperature: float) -> bool:
        return self.keeps_the_distribution

    def reset(self) -> None:
        pass


def run(name: str, prompt: int, seconds: float, text: tuple[int, ...] = VARIETY, **at: float) -> Run:
    workload = "code" if prompt % 2 == 0 else "edit"
    case = EncodedPrompt(f"p{prompt}", workload, torch.zeros(3, dtype=torch.int64))
    trial = Trial(
        prompt, (case,), at.get("temperature", 0.0), int(at.get("round", 0)), int(at.get("again", 0))
    )
    length = 1 if name == "plain" else 4
    records = [StepRecord(Forest.chain((length - 1,)), (length - 1,), (length,), length - 1, 0.0, {})] * (
        len(text) // length
    )
    return Run(name, trial, seconds, 0.0, 0, Counts.of(records), (text,))


def rows_of(
    *runs: Run, contenders: Sequence[Named] = (Named("plain"), Named("fast")), **more: Any
) -> list[ResultRow]:
    return summarise(runs, contenders, "plain", **more)


def test_the_bound_of_acceptance_is_pooled_as_its_row_is() -> None:
    bounds = {
        ("fast", "code", 0.0): AcceptanceBound(4, 2, 3.0),
        ("fast", "edit", 0.0): AcceptanceBound(6, 3, 5.0),
    }
    rows = summarise(paired(0.5), (Named("plain"), Named("fast")), "plain", bounds=bounds)
    assert (
        only(rows, "fast").first_token == AcceptanceBound(10, 5, 8.0)
        and only(rows, "plain").first_token is None
    )
    assert only(rows, "fast", "code").to_json()["first_token"]["bound"] == 0.75
    assert any("50 of 80 %" in cell for table in tables(rows) for row in table.rows for cell in row)


def only(rows: Sequence[ResultRow], name: str, workload: str = "all", selection: str = ALL) -> ResultRow:
    (row,) = [r for r in rows if (r.contender, r.workload, r.selection) == (name, workload, selection)]
    return row


def paired(fast: float, prompts: int = 4) -> list[Run]:
    return [made for p in range(prompts) for made in (run("plain", p, 1.0), run("fast", p, fast))]


def test_speed_is_compared_prompt_by_prompt() -> None:
    rows = rows_of(*paired(0.5))
    fast = only(rows, "fast")
    assert (fast.speedup.median, fast.speedup.low, fast.speedup.high) == (2.0, 2.0, 2.0)
    assert fast.tokens_per_second.median == 80.0
    assert fast.speedup_of_totals == fast.decode_speedup == 2.0
    assert only(rows, "plain").speedup.median == 1.0
    assert only(rows, "fast", "code").prompts == 2


def test_efficiency_is_the_speedup_over_what_acceptance_and_costs_allow() -> None:
    curve = CostCurve({1: 1.0, 4: 1.6})
    costs = {("target", "eager"): curve, ("draft", "eager"): CostCurve({1: 0.1})}
    fast = only(rows_of(*paired(0.5), costs=costs), "fast")
    # tau = 4, one step costs t(4) + 3 draft forwards: 4 * 1 / (1.6 + 0.3)
    assert fast.ideal_speedup == pytest.approx(4 / 1.9)
    assert fast.efficiency and fast.efficiency.median == pytest.approx(2 * 1.9 / 4)
    assert only(rows_of(*paired(0.5), costs=costs), "plain").efficiency is None  # it drafts nothing


def test_looping_prompts_are_left_out_of_the_headline_and_kept_in_the_rows() -> None:
    runs = paired(0.5) + [run("plain", 4, 1.0, LOOP), run("fast", 4, 0.1, LOOP)]
    rows = rows_of(*runs)
    assert only(rows, "fast").prompts == 5 and only(rows, "fast", selection=VARIED).prompts == 4
    assert {row.selection for row in headline(rows, "all", 0.0)} == {VARIED}
    assert only(rows, "fast").speedup.high > only(rows, "fast", selection=VARIED).speedup.high
    # two prompts that do not repeat themselves: no interval, and no wider selection
    edits = headline(rows, "edit", 0.0)
    assert {row.selection for row in edits} == {VARIED} and all(row.too_few_prompts for row in edits)


def test_a_selection_without_enough_prompts_is_reported_as_such() -> None:
    loops = [made for p in range(4) for made in (run("plain", p, 1.0, LOOP), run("fast", p, 0.1, LOOP))]
    rows = rows_of(*loops)
    fast = only(rows, "fast", selection=VARIED)
    assert fast.prompts == 0 and fast.too_few_prompts and not fast.speedup.known
    cells = [cell for table in tables(rows) for row in table.rows for cell in row]
    assert TOO_FEW in cells and "10.00 (10.00-10.00)" not in cells
    assert recommend(headline(rows, "all", 0.0), CHOICES).method is None
    shown = [cell for table in tables(rows, ALL) for row in table.rows for cell in row]
    assert "10.00 (10.00-10.00)" in shown
    assert recommend(headline(rows, "all", 0.0, ALL), CHOICES).method == "prompt-lookup"


def test_the_printed_speedup_is_of_pairs_and_both_speeds_are_over_the_same_pairs() -> None:
    seconds = {0: (1.0, 0.5), 2: (2.0, 0.5), 4: (4.0, 4.0)}
    runs = [made for p, (a, b) in seconds.items() for made in (run("plain", p, a), run("fast", p, b))]
    fast = only(rows_of(*runs, run("plain", 6, 0.1)), "fast", "code")
    assert (fast.tokens_per_second.median, fast.plain_tokens_per_second.median) == (80.0, 20.0)
    assert fast.speedup.median == 2.0  # of 2, 4 and 1; the ratio of the medians is 4
    assert fast.speedup.low <= 2.0 <= fast.speedup.high


def test_a_run_whose_plain_counterpart_is_missing_is_not_compared() -> None:
    rows = rows_of(*paired(0.5), run("fast", 9, 0.1))
    assert only(rows, "fast").prompts == 4


def test_differing_greedy_texts_are_counted_with_their_first_position() -> None:
    other = (*VARIETY[:30], *range(100, 110))
    rows = rows_of(
        run("plain", 0, 1.0), run("fast", 0, 0.5, other), run("plain", 2, 1.0), run("fast", 2, 0.5)
    )
    fast = only(rows, "fast", "code")
    assert (fast.different, fast.compared, fast.first_difference) == (1, 2, 30)
    sampled = rows_of(run("plain", 0, 1.0, temperature=1), run("fast", 0, 1.0, other, temperature=1))
    assert only(sampled, "fast", "code").different is None


def of_one_prompt(*seconds: tuple[float, float], by: str) -> list[Run]:
    """Runs of plain decoding and the method with these seconds, in further rounds or repetitions."""
    return [
        each
        for number, (plain, fast) in enumerate(seconds)
        for each in (run("plain", 0, plain, **{by: number}), run("fast", 0, fast, **{by: number}))
    ]


def test_a_prompt_counts_with_the_median_of_its_rounds() -> None:
    fast = only(rows_of(*of_one_prompt((1.0, 0.5), (1.0, 0.5), (9.0, 0.9), by="round")), "fast", "code")
    assert fast.speedup.median == 2.0  # of 2, 2 and 10; the totals give 5.8
    assert fast.runs == 3 and fast.prompts == 1


def test_repetitions_in_a_round_count_together() -> None:
    fast = only(rows_of(*of_one_prompt((1.0, 0.1), (9.0, 9.9), by="again")), "fast", "code")
    assert fast.speedup.median == pytest.approx(1.0)  # 10 s and 10 s; the repetitions alone have 10 and 0.9


def test_a_prompt_is_varied_by_the_mean_of_its_rounds() -> None:
    runs = [
        run(name, 0, 1.0, text, round=number)
        for name in ("plain", "fast")
        for number, text in enumerate((VARIETY, LOOP))
    ]
    assert only(rows_of(*runs), "fast", "code", VARIED).prompts == 0


def test_a_prompt_may_be_varied_at_one_temperature_only() -> None:
    runs = [
        run(name, 0, 1.0, text, temperature=heat)
        for name in ("plain", "fast")
        for heat, text in ((0.0, LOOP), (1.0, VARIETY))
    ]
    kept = {
        row.temperature: row.prompts
        for row in rows_of(*runs)
        if (row.contender, row.selection) == ("fast", VARIED)
    }
    assert kept == {0.0: 0, 1.0: 1, None: 1}


def test_short_outputs_are_left_out_of_speeds() -> None:
    short = VARIETY[:4]
    runs = [*paired(0.5), run("plain", 4, 0.1, short), run("fast", 4, 1.0, short)]
    fast = only(rows_of(*runs), "fast")
    assert fast.prompts == 5 and fast.speedup.low == fast.speedup.high == 2.0 == fast.speedup_of_totals
    only_short = rows_of(run("plain", 4, 0.1, short), run("fast", 4, 1.0, short))
    assert only(only_short, "fast", "code").speedup.median == pytest.approx(0.1)


def test_a_pooled_row_is_lossless_only_if_all_temperatures_are() -> None:
    @dataclass
    class Greedy(Named):
        def lossless(self, temperature: float) -> bool:
            return temperature == 0

    runs = [run(name, 0, 1.0, temperature=heat) for name in ("plain", "fast") for heat in (0.0, 1.0)]
    rows = rows_of(*runs, contenders=(Named("plain"), Greedy("fast")))
    found = {row.temperature: row.lossless for row in rows if row.contender == "fast"}
    assert found == {0.0: True, 1.0: False, None: False}


def test_a_contender_without_runs_at_a_temperature_has_no_pooled_row() -> None:
    runs = [run("plain", 0, 1.0, temperature=heat) for heat in (0.0, 1.0)] + [run("fast", 0, 0.5)]
    found = {(row.contender, row.temperature) for row in rows_of(*runs)}
    assert found == {("plain", 0.0), ("plain", 1.0), ("plain", None), ("fast", 0.0)}


def test_the_first_difference_is_the_median_of_the_differing_texts() -> None:
    runs = [run("plain", prompt, 1.0) for prompt in range(0, 8, 2)]
    runs += [run("fast", 2 * number, 1.0, (*VARIETY[:at], 99)) for number, at in enumerate((3, 30, 8))]
    fast = only(rows_of(*runs, run("fast", 6, 1.0)), "fast", "code")
    assert (fast.different, fast.compared, fast.first_difference) == (3, 4, 8)


def test_runs_that_were_not_all_counted_have_no_counts() -> None:
    first, second = run("fast", 0, 1.0), replace(run("fast", 2, 1.0), counts=None)
    plain = [run("plain", prompt, 1.0) for prompt in (0, 2)]
    assert only(rows_of(*plain, first, second), "fast", "code").counts is None


CHOICES = {
    "plain": MethodChoice("autoregressive", {}, None),
    "fast": MethodChoice("prompt-lookup", {"depth": 4}, None),
}


def test_the_recommendation_names_method_options_and_gain() -> None:
    advice = recommend(headline(rows_of(*paired(0.5)), "all", 0.0), CHOICES)
    assert (advice.method, advice.options, advice.gain.median) == ("prompt-lookup", {"depth": 4}, 2.0)
    data = advice.to_json({"prompts": ["code"]}, {"device": "here"})
    assert set(data) == {
        "method",
        "options",
        "draft",
        "expected_speedup",
        "interval",
        "reason",
        "workload",
        "provenance",
    }


def test_a_gain_that_is_not_certain_means_do_not_speculate() -> None:
    runs = [made for p in range(4) for made in (run("plain", p, 1.0), run("fast", p, 0.5 if p == 0 else 1.1))]
    for made in (runs, paired(1.0), paired(2.0)):
        advice = recommend(headline(rows_of(*made), "all", 0.0), CHOICES)
        assert advice.method == "autoregressive" and advice.gain.median == 1.0
        assert advice.reason.startswith("do not speculate")


def test_a_gain_whose_interval_reaches_below_1_is_not_recommended() -> None:
    seconds = (0.5, 0.5, 1.25, 1.25, 0.5)
    runs = [each for p, fast in enumerate(seconds) for each in (run("plain", p, 1.0), run("fast", p, fast))]
    rows = headline(rows_of(*runs), "all", 0.0)
    assert rows[1].speedup.median == 2.0 and rows[1].speedup.low == 0.8
    assert recommend(rows, CHOICES).method == "autoregressive"


def test_of_several_gains_the_one_of_the_largest_median_is_recommended() -> None:
    choices = CHOICES | {"steady": MethodChoice("suffix-decoding", {}, None)}
    runs = [run("plain", prompt, 1.0) for prompt in range(4)]
    runs += [run("fast", prompt, each) for prompt, each in enumerate((0.8, 0.5, 0.5, 0.5))]
    runs += [run("steady", prompt, 0.625) for prompt in range(4)]
    rows = headline(rows_of(*runs, contenders=(Named("plain"), Named("steady"), Named("fast"))), "all", 0.0)
    medians = {row.contender: (row.speedup.median, row.speedup.low) for row in rows}
    assert medians["fast"][0] == 2.0 and medians["fast"][1] < medians["steady"][1] == 1.6
    assert recommend(rows, choices).method == "prompt-lookup"


def test_a_slow_method_that_could_adapt_its_trees_is_to_be_measured_again() -> None:
    choices = {**CHOICES, "fast": MethodChoice("eagle2", {}, None, could_adapt=True)}
    advice = recommend(headline(rows_of(*paired(2.0)), "all", 0.0), choices)
    assert advice.reason.endswith("measure it with adaptive=true.")


def test_one_or_two_prompts_make_nothing_certain() -> None:
    advice = recommend(headline(rows_of(*paired(0.5, prompts=2)), "all", 0.0), CHOICES)
    assert advice.method is None and advice.reason == (
        "no recommendation: only 2 of the needed 3 prompts have plain output that does not repeat itself; "
        "measure more prompts, or include the others with --selection all."
    )
    advice = recommend(headline(rows_of(*paired(0.5, prompts=2)), "all", 0.0, ALL), CHOICES)
    assert advice.reason == (
        "no recommendation: only 2 of the needed 3 prompts were measured; give more with --prompts and "
        "--num-prompts."
    )


def test_a_method_with_another_distribution_and_a_peer_are_never_recommended() -> None:
    lossy = (Named("plain"), Named("fast", keeps_the_distribution=False))
    rows = rows_of(*paired(0.5), contenders=lossy)
    advice = recommend(headline(rows, "all", 0.0), CHOICES)
    assert advice.reason == "no recommendation: none of the measured methods is lossless."
    assert notes(rows).endswith("LOSSY, so that their texts are not the target's: fast.")
    peer = {"plain": CHOICES["plain"]}
    assert recommend(headline(rows_of(*paired(0.5)), "all", 0.0), peer).method is None
    assert recommend([], CHOICES).reason == (
        "no recommendation: no method that can be recommended was measured completely."
    )


def test_numbers_stay_whole_on_a_terminal_of_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    names = (Named("plain"), Named("a-method-with-a-long-name:depth=10,max_ngram=3"))
    runs = [made for p in range(4) for made in (run("plain", p, 1.0), run(names[1].name, p, 0.5))]
    print_tables(tables(rows_of(*runs, contenders=names)))
    with progress(2) as advance:
        advance("working", 1)
    printed = capsys.readouterr().out
    assert "differing" in printed and "overhead" in printed and "2.00 (2.00-2.00)" in printed


def test_acceptance_by_position_is_among_steps_that_drafted() -> None:
    chain, root = Forest.chain((1,)), Forest.chain((0,))
    steps = [StepRecord(chain, (1,), (2,), 1, 0.0, {}), StepRecord(root, (0,), (1,), 0, 0.0, {})]
    runs = [run("plain", 0, 1.0), replace(run("fast", 0, 1.0), counts=Counts.of(steps))]
    inside = next(table for table in tables(rows_of(*runs), ALL) if "inside a step" in table.title)
    assert dict(zip(inside.columns, inside.rows[1], strict=True))["by position, %"] == "100"


def test_tables_name_their_prompts_and_what_is_counted() -> None:
    found = tables(rows_of(*paired(0.5)))
    assert "repeats at most 15 %" in next(table.title for table in found if table.title.startswith("all"))
    text = "\n".join(map(markdown, found))
    assert (
        "mean acceptance length" in text and "speedup, paired (95 %)" in text and "2.00 (2.00-2.00)" in text
    )
    page = markdown(found[0])
    assert page.splitlines()[3].startswith("| ---") and page.count("|") % 2 == 0
