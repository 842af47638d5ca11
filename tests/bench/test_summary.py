"""From runs to rows, tables and one recommendation, on runs written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.contender import RunOutcome
from outpace.bench.measure.forward_cost import CostCurve
from outpace.bench.measure.metrics import Counts, StepRecord
from outpace.bench.measure.recommend import MethodChoice, recommend
from outpace.bench.measure.run import EncodedPrompt, Run, Trial
from outpace.bench.report.summary import ALL, VARIED, ResultRow, headline, summarise
from outpace.bench.report.tables import TOO_FEW, notes, tables
from outpace.console import progress
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import Forest
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
    trial = Trial(prompt, (case,), at.get("temperature", 0.0), int(at.get("round", 0)))
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


def test_tables_name_their_prompts_and_what_is_counted() -> None:
    found = tables(rows_of(*paired(0.5)))
    assert "repeats at most 15 %" in next(table.title for table in found if table.title.startswith("all"))
    text = "\n".join(map(markdown, found))
    assert (
        "mean acceptance length" in text and "speedup, paired (95 %)" in text and "2.00 (2.00-2.00)" in text
    )
    page = markdown(found[0])
    assert page.splitlines()[3].startswith("| ---") and page.count("|") % 2 == 0
