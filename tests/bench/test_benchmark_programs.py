"""Tests of programs in benchmarks/: overhead, gpu_speed, forwards, indexes and sampling."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import forwards, indexes, overhead, prompt_sets, publish, sampling, shape_forwards
from benchmarks import gpu_speed as gpu_check
from benchmarks.overhead import Overhead, OverheadCase, cases, measure, small_pair, to_table
from benchmarks.paired import load
from outpace.bench.measure.provenance import provenance
from outpace.bench.measure.workload import load_items
from outpace.core import clock as core_clock
from outpace.models.hf.target import HFTarget
from outpace.recipes import get
from outpace.tables import markdown


def test_overhead_is_measured_outside_the_models_and_leaves_them_as_they_were() -> None:
    models = small_pair(64)
    case = OverheadCase(
        "chain", lambda target, draft: get("speculative-sampling")(target, draft=draft, depth=2), 1.0, 2, 9.0
    )
    found = measure(case, HFTarget(models[0]), HFTarget(models[1]), tokens=8, repeats=1)
    assert found.steps > 0 and found.rows == 2
    assert min(found.draft, found.prepare, found.verify, found.commit, found.observe) >= 0
    assert found.low <= found.total <= found.high
    assert not models[0]._forward_hooks and not models[0]._forward_pre_hooks
    assert "chain, 2 rows" in markdown(to_table([found]))


class Clock:
    """A clock for `perf_counter`, which `work` moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float, function: Any) -> Any:
        """The function, taking so long."""

        def slow(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return function(*args, **kwargs)

        return slow


def test_overhead_leaves_out_the_models_the_first_steps_and_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafting takes 3 s per step in all, of which 2 are the draft model's, and verification 5."""
    clock = Clock()
    for module in (overhead, core_clock):
        monkeypatch.setattr(module, "perf_counter", clock)
    target, draft = map(HFTarget, small_pair(64))
    monkeypatch.setattr(draft.forward.model, "forward", clock.work(1.0, draft.forward.model.forward))
    monkeypatch.setattr(target.forward.model, "forward", clock.work(7.0, target.forward.model.forward))
    builds = list[int]()

    def build(target: HFTarget, draft: HFTarget) -> Any:
        parts = get("speculative-sampling")(target, draft=draft, depth=2)
        propose, verify, steps = parts.drafter.propose, parts.verifier.verify, list[int]()

        def slower_at_first(*args: Any) -> Any:
            steps.append(1)
            clock.now += 1.0 if len(builds) > 1 and len(steps) > 2 else 100.0
            return propose(*args)

        builds.append(1)
        monkeypatch.setattr(parts.drafter, "propose", slower_at_first)
        monkeypatch.setattr(parts.verifier, "verify", clock.work(5.0, verify))
        return parts

    found = overhead.measure(OverheadCase("chain", build), target, draft, tokens=5, repeats=1)
    assert (found.draft, found.prepare, found.verify, found.total) == (1e6, 0.0, 5e6, 6e6)
    assert found.low == found.high == 6e6, "the others take 100 s more"


def test_what_each_further_row_adds() -> None:
    def cost(rows: int, total: float, name: str = "chain") -> Overhead:
        return Overhead(name, rows, 9, 0.0, 0.0, 0.0, 0.0, 0.0, total, total, total, None)

    found = [cost(1, 100.0), cost(4, 160.0), cost(2, 900.0, "tree")]
    assert [overhead.per_row(each, found) for each in found] == [None, 20.0, None]


def test_the_cases_are_chains_trees_and_batches() -> None:
    names = [(case.name, case.rows) for case in cases()]
    assert len(names) == len(set(names))
    assert {
        ("n-gram chain of 4, greedy", 8),
        ("model chain of 5, sampled", 1),
        ("tree of 16 nodes, greedy", 1),
    } <= set(names)
    # batches have no goal
    assert {case.name: case.goal for case in cases()}["model chain of 4, greedy"] is None


def test_sampling_is_measured_beside_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        sampling.main(["--vocabulary", "500", "--rounds", "2"])
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert printed.count("top-k 20, top-p 0.8") == 2 and "transformers ms" in printed


@pytest.mark.slow
def test_a_short_check_writes_what_it_has(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--target", tiny.target, "--draft", tiny.draft, "--device", "cpu", "--max-tokens", "4"]
    arguments += [
        "--num-prompts",
        "1",
        "--rounds",
        "1",
        "--seconds",
        "0",
        "--out",
        str(tmp_path),
        "--dtype",
        "float64",
    ]
    assert gpu_check.main(arguments) == 0
    data = json.loads((tmp_path / "gpu.json").read_text())
    assert len(data["runs"]) == 1 and not data["complete"]
    assert "1 of" in capsys.readouterr().out and "Interrupted" in (tmp_path / "gpu.md").read_text()


def test_a_short_check_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        gpu_check.main(["--target", str(tmp_path / "nowhere"), "--draft", "x", "--out", str(tmp_path)]) == 2
    )
    assert "there is no checkpoint folder" in capsys.readouterr().err


@pytest.mark.slow
def test_forwards_are_timed_compiled_and_as_they_are(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "some.txt"
    prompts.write_text("def push(self, item):\nclass Queue:\nimport os\n", encoding="utf-8")
    arguments = [
        "--target",
        tiny.target,
        "--draft",
        tiny.draft,
        "--dtype",
        "float32",
        "--threads",
        "1",
        "--cpu-time",
    ]
    arguments += ["--methods", "speculative-sampling:depth=2", "--prompts", str(prompts), "--max-tokens", "4"]
    arguments += ["--rounds", "1", "--sizes", "1,3", "--repeats", "2", "--length", "9"]
    arguments += ["--json", str(tmp_path / "x.json"), "--markdown", str(tmp_path / "x.md")]
    assert forwards.main(arguments) == 0
    data = json.loads((tmp_path / "x.json").read_text())
    rows = {(row["model"], row["mode"], row["tokens"]) for row in data["milliseconds"]}
    assert rows == {
        (m, mode, n) for m in ("target", "draft") for mode in ("compiled", "eager") for n in (1, 3)
    }
    assert all(min(row["milliseconds"], row["after_another_size"]) > 0 for row in data["milliseconds"])
    speeds = [(row["method"], row["mode"]) for row in data["tokens_per_second"] if row["low"] > 0]
    assert speeds == [
        (m, mode) for m in ("plain", "speculative-sampling:depth=2") for mode in ("compiled", "eager")
    ]
    assert set(data["compile_seconds"]) == {"target", "draft"} and data["provenance"]["dtype"] == "float32"
    printed = capsys.readouterr().out
    assert "9 being read: milliseconds of CPU time" in printed
    assert "| draft, compiled, after another size |" in (tmp_path / "x.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--draft", ""], "speculative-sampling needs draft: a smaller model"),
        (["--methods", "mcsd:draft=other"], "all methods have one draft here: name other with --draft"),
        (["--max-tokens", "1000"], "every prompt is too long for 1000 new tokens: lower --max-tokens"),
        (["--dtype", "float64"], "compiling does not support float64"),
    ],
)
def test_forwards_that_cannot_be_timed_are_one_sentence(
    tiny: Any, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "--target",
        tiny.target,
        "--draft",
        tiny.draft,
        "--dtype",
        "float32",
        "--threads",
        "1",
        *arguments,
    ]
    assert forwards.main(given) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/x/benchmarks/overhead.py", "--json"], ["python", "-m", "benchmarks.overhead", "--json"]),
        (["/x/benchmarks/peers/__main__.py", "--json"], ["python", "-m", "benchmarks.peers", "--json"]),
        (["/x/bin/outpace", "bench"], ["outpace", "bench"]),
        ([], []),
    ],
)
def test_a_command_is_named_as_one_types_it(argv: list[str], words: list[str]) -> None:
    assert provenance(argv=argv)["argv"] == words


@pytest.mark.slow
def test_the_costs_of_indexes_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "indexes.json"
    assert indexes.main(["--tokens", "10000", "--alone", "3000", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["schema"] == "outpace-indexes/1" and found["provenance"]["argv"]
    assert {row["index"] for row in found["microseconds"]} == {
        "suffix automaton",
        "static automaton",
        "suffix tree",
        "suffix array",
        "adjacency",
        "trigrams",
        "n-gram probabilities",
        "hidden states",
    }
    assert all(row["microseconds"] > 0 for row in found["microseconds"])
    assert found["alone"]["peak_mib"] >= found["alone"]["before_mib"] > 0
    assert "suffix tree: extend, a token" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        indexes.main(["--tokens", "9999"])


def test_the_page_about_indexes_shows_what_was_measured() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    data = load(docs / "results/indexes/indexes-cpu.json.gz")
    costs = [indexes.IndexCost(**row) for row in data["microseconds"]]
    rows = markdown(indexes.to_table(costs, data["seconds_before"])).split("\n")[2:]
    page = (docs / "indexes.md").read_text(encoding="utf-8")
    assert "\n".join(rows) in page
    alone = data["alone"]
    assert f"{alone['tokens']:,} tokens is built in {alone['seconds']:.1f} seconds" in page
    assert f"{alone['before_mib']:.0f} MiB before and {alone['peak_mib']:.0f} MiB at most" in page.replace(
        "\n", " "
    )


def test_further_prompts_are_conversations_and_random_words(tmp_path: Path) -> None:
    prompt_sets.write(tmp_path / "one")
    prompt_sets.write(tmp_path / "two")
    for name in ("chat", "random"):
        files = [tmp_path / folder / f"{name}.jsonl" for folder in ("one", "two")]
        assert files[0].read_text() == files[1].read_text()
        items = load_items(str(files[0]))
        assert len(items) == prompt_sets.NUM_PROMPTS and {item.chat for item in items} == {name == "chat"}
    assert any(len(item.turns) > 1 for item in load_items(str(tmp_path / "one" / "chat.jsonl")))


def test_no_unused_prompt_is_one_that_constants_were_chosen_with(tmp_path: Path) -> None:
    prompt_sets.write(tmp_path)
    for kind, number in (("arithmetic", 40), ("edit", 40), ("code", 12), ("code", 16)):
        used = {item.turns for item in load_items(kind, number)}
        unused = {item.turns for item in load_items(str(tmp_path / f"{kind}.jsonl"))}
        assert len(unused) >= 16 and not used & unused


def test_the_page_about_programs_lists_all_of_them() -> None:
    root = Path(__file__).resolve().parents[2]
    programs = {path.stem for path in (root / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    programs |= {path.parent.name for path in (root / "benchmarks").glob("*/__main__.py")}
    page = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `python -m benchmarks\.(\w+)", page, re.MULTILINE)) == programs


def test_only_complete_measurements_of_this_commit_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"

    def kept(**data: Any) -> bool:
        file.write_text(json.dumps({"provenance": {"commit": "abc"}, **data}), encoding="utf-8")
        return publish.is_current(file, "abc")

    assert not publish.is_current(file, "abc")
    assert kept() and kept(complete=True) and not kept(complete=False)
    assert not publish.is_current(file, "xyz")


@pytest.mark.slow
def test_forwards_of_a_shape_are_timed_by_rows_and_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--rows", "1,2", "--contexts", "8", "--sizes", "1,4", "--repeats", "1"]
    options = ["--shape", "tiny", "--dtype", "float32", "--device", "cpu", *sizes]
    assert shape_forwards.main([*options, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(row["mode"], row["rows"]) for row in found["rows"]] == [
        (mode, rows) for mode in ("compiled", "eager") for rows in (1, 2)
    ]
    assert all(set(row["milliseconds"]) == {"1", "4"} for row in found["rows"])
    assert found["provenance"]["commit"] and "Milliseconds of a forward of tiny" in capsys.readouterr().out
