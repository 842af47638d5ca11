"""`outpace bench` on tiny checkpoints: files, messages, and what remains after an interruption."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from outpace.bench.measure.contender import MethodContender, RunOutcome
from outpace.bench.report.json_file import finite, write_json
from outpace.cli.commands.bench import bench
from outpace.models.checkpoint import load_checkpoint
from outpace.models.hf.target import load

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(bench)
PROMPTS = "def push(self, item):\nclass Queue:\nfor index in range(3):\n"
RESULT_KEYS = {
    "method",
    "kind",
    "mode",
    "options",
    "workload",
    "temperature",
    "selection",
    "prompts",
    "runs",
    "tokens_per_second",
    "speedup",
    "speedup_of_totals",
    "decode_speedup",
    "ideal_speedup",
    "efficiency",
    "repetition",
    "lossless",
    "divergence",
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_by_position",
    "acceptance_by_position_conditional",
    "milliseconds_per_step",
    "first_token",
    "headline",
}


def call(tiny: Any, tmp_path: Path, *arguments: str) -> Result:
    prompts = tmp_path / "some.txt"
    prompts.write_text(PROMPTS, encoding="utf-8")
    options = [
        "--target",
        tiny.target,
        "--draft",
        tiny.draft,
        "--prompts",
        str(prompts),
        "--dtype",
        "float64",
    ]
    options += ["--max-tokens", "8", "--rounds", "1", "--threads", "1", "--device", "cpu", "--ignore-eos"]
    return CliRunner().invoke(APP, [*options, *arguments])


def outputs(tmp_path: Path) -> tuple[str, ...]:
    return (
        "--selection",
        "all",
        "--output",
        str(tmp_path / "out"),
        "--recommend",
        str(tmp_path / "method.json"),
    )


@pytest.mark.slow
def test_all_methods_of_a_family_take_part(tiny: Any, tmp_path: Path) -> None:
    path, page = tmp_path / "base.json", tmp_path / "page.html"
    files = ["--output", str(path), "--html", str(page)]
    done = call(tiny, tmp_path, "--family", "base", "--temperature", "0", *files)
    assert done.exit_code == 0, done.output
    assert page.read_text().startswith("<!doctype html>")
    assert {row["method"] for row in json.loads(path.read_text())["results"]} == {
        "plain",
        "speculative-sampling",
        "lookup-or-draft",
        "pard",
    }
    done = call(tiny, tmp_path, "--html", str(path))
    assert done.exit_code != 0 and "is no name of a page: give one that ends with .html" in done.output
    done = call(tiny, tmp_path, "--family", "magic")
    assert (
        done.exit_code != 0
        and "there is no method of the family magic; the families are base, " in done.output
    )


@pytest.mark.slow
def test_methods_of_a_family_that_lack_their_parts_are_left_out(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "self.json"
    options = ["--temperature", "0", "--num-prompts", "1", "--output", str(path), "--json"]
    done = call(tiny, tmp_path, "--family", "self-speculation", *options)
    assert done.exit_code == 0, done.output
    data = json.loads(path.read_text())
    measured = {row["method"] for row in data["results"]}
    assert {"plain", "layerskip", "swift"} <= measured and not {"kangaroo", "knn-ssd", "specee"} & measured
    assert data["failed"]["kangaroo"].startswith("kangaroo needs head") and data["complete"]
    lines = [line for line in done.stderr.splitlines() if line.startswith(("kangaroo", "knn-ssd", "specee"))]
    assert [" was left out: " in line for line in lines] == [True] * 3
    done = call(tiny, tmp_path, "--methods", "layerskip,kangaroo", "--family", "self-speculation", *options)
    assert done.exit_code == 2 and "kangaroo needs head" in done.stderr.splitlines()[-1]


def test_a_family_of_which_nothing_can_be_measured_is_refused(tiny: Any, tmp_path: Path) -> None:
    done = call(tiny, tmp_path, "--family", "trained heads")
    assert done.exit_code == 2
    sentence = done.stderr.splitlines()[-1]
    assert "each of these methods was left out: chimera, coral, dart, ddtree, " in sentence
    assert "as in --methods chimera:OPTION=VALUE (chimera needs head: a folder" in sentence


@pytest.mark.usefixtures("undisturbed")
def test_everything_that_was_measured_is_written(tiny: Any, tmp_path: Path) -> None:
    threads, methods = (
        torch.get_num_threads(),
        "prompt-lookup:depth=3,allow_shorter=true,speculative-sampling:depth=2",
    )
    done = call(tiny, tmp_path, "--methods", methods, "--temperature", "0,1", *outputs(tmp_path))
    assert done.exit_code == 0, done.output
    assert torch.get_num_threads() == threads
    data = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert data["schema"] == "outpace-bench/2" and data["complete"]
    assert data["runs_made"] == data["runs_planned"] == len(data["runs"]) == 3 * 3 * 2
    assert set(data["provenance"]["versions"]) == {"outpace", "torch", "transformers", "python"}
    assert {"argv", "commit", "device", "threads", "dtype", "date"} <= set(data["provenance"])
    assert set(data["milliseconds_by_nodes"]) == {"target", "draft"} == set(data["load_seconds"])
    ours = [row for row in data["results"] if row["kind"] == "outpace"]
    assert all(set(row) >= RESULT_KEYS for row in ours)
    assert {row["method"] for row in ours} == {
        "plain",
        "prompt-lookup:depth=3,allow_shorter=True",
        "speculative-sampling:depth=2",
    }
    assert all(row["divergence"]["different"] == 0 for row in ours if row["temperature"] == 0)
    assert all(row["mean_acceptance_length"] == 1 for row in ours if row["method"] == "plain")
    advice = json.loads((tmp_path / "method.json").read_text())
    assert set(advice) >= {
        "method",
        "options",
        "draft",
        "expected_speedup",
        "interval",
        "workload",
        "provenance",
    }
    assert advice["workload"]["selection"] in data["selections"]
    assert any(row["headline"] for row in data["results"])
    assert advice["method"] in ("autoregressive", "prompt-lookup", "speculative-sampling")
    assert "| method |" in (tmp_path / "out" / "bench.md").read_text()
    page = (tmp_path / "out" / "bench.html").read_text()
    # a chart for both temperatures on top, then one for each of the folded parts
    assert page.count('<div class="bars">') == 4
    assert page.index("all temperatures") < page.index('<div class="bars">') < page.index("<details")
    assert "<details open" not in page and "outpace serve" in page and "<h2>Sample texts</h2>" in page
    assert not re.search(r"""(src|href)=["']http""", page) and 'name="viewport"' in page
    assert (
        tiny.target in page
        and tiny.draft in page
        and len(set(re.findall(r"<h2>.*", page))) == page.count("<h2>")
    )
    assert "Recommendation: " in done.output and "counts the bonus token" in done.output


def test_too_few_prompts_give_no_recommendation_and_no_file(tiny: Any, tmp_path: Path) -> None:
    options = ["--methods", "prompt-lookup", "--temperature", "0", "--num-prompts", "1", *outputs(tmp_path)]
    done = call(tiny, tmp_path, *options)
    assert done.exit_code == 0, done.output
    why = "o recommendation: only 1 of the needed 3 prompts were measured"
    assert f"N{why}" in done.stdout and "do not speculate" not in done.output
    assert f"method.json was not written: n{why}" in done.stderr and not (tmp_path / "method.json").exists()
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["recommendation"]["method"] is None


def test_repeated_prompts_are_separate_from_first_decodings(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "again.json"
    arguments = ("--methods", "token-recycling", "--temperature", "0", "--repeat", "2", "--output", str(path))
    done = call(tiny, tmp_path, *arguments)
    assert done.exit_code == 0, done.output
    assert "all of which came 2 times" in done.output and "second half" in done.output
    data = json.loads(path.read_text())
    assert data["runs_made"] == 2 * 2 * 3 and data["settings"]["repeat"] == 2
    row = next(row for row in data["results"] if row["method"] == "token-recycling")
    first, second = (row["halves"][name] for name in ("first", "second"))
    assert (row["repeat"], row["prompts"], row["runs"]) == (2, 3, 6)
    assert second["mean_acceptance_length"] > first["mean_acceptance_length"]


@pytest.mark.slow
@pytest.mark.usefixtures("undisturbed")
def test_compiled_and_eager_forwards_of_the_same_models_are_measured(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []

    def counted(name: str, **options: Any) -> Any:
        loads.append(name)
        return load_checkpoint(name, **options)

    monkeypatch.setattr("outpace.models.hf.target.load_checkpoint", counted)
    wanted = [
        "--methods",
        "speculative-sampling:depth=2,tli:depth=2",
        "--dtype",
        "float32",
        "--temperature",
        "0,1",
    ]
    done = call(tiny, tmp_path, *wanted, "--compile", *outputs(tmp_path))
    assert done.exit_code == 0, done.output
    assert sorted(loads) == sorted([tiny.target, tiny.draft])  # the weights are there once
    data = json.loads((tmp_path / "out" / "bench.json").read_text())
    names = ["plain", "speculative-sampling:depth=2", "tli:depth=2"]
    modes = {row["method"]: row["mode"] for row in data["results"]}
    assert modes == {name: "compiled" for name in names} | {f"{name} (eager)": "eager" for name in names}
    # pairs of compiled and eager
    assert list(modes) == [each for name in names for each in (name, f"{name} (eager)")]
    assert data["complete"] and data["settings"]["compile"] is True and data["settings"]["methods"] == names
    assert set(data["milliseconds_by_nodes"]) == {"target", "draft", "target (eager)", "draft (eager)"}
    assert set(data["compile_seconds"]) == {"target", "draft"} == set(data["load_seconds"])
    assert min(data["compile_seconds"].values()) > 0 and set(data["warm_up_seconds"]) == set(modes)
    assert (
        set(data["best_trees"]) == {name for name in modes if "plain" not in name} == set(data["best_chains"])
    )
    drafted = [row for row in data["results"] if row.get("drafted")]
    assert drafted and all(row["efficiency"]["median"] > 0 for row in drafted)
    assert all(row["efficiency"] is None for row in data["results"] if not row.get("drafted"))
    greedy = [row for row in data["results"] if row["temperature"] == 0]
    assert all(row["divergence"]["different"] == 0 for row in greedy)  # float32: the same text in both modes
    assert "Load time, in seconds" in done.output and "target (eager)" in done.output
    assert "Compiled forwards: plain decoding is" in done.output
    assert "outpace generate --dtype float32 --device cpu --compile --method @" in done.output
    page = (tmp_path / "out" / "bench.html").read_text()
    assert "speculative-sampling:depth=2 (eager)" in page and "Compiled forwards" in page


@pytest.mark.slow
def test_eager_rows_can_be_left_out(tiny: Any, tmp_path: Path) -> None:
    arguments = (
        "--methods",
        "prompt-lookup",
        "--dtype",
        "float32",
        "--temperature",
        "0",
        "--output",
        str(tmp_path / "x.json"),
    )
    done = call(tiny, tmp_path, *arguments, "--compile", "--no-eager")
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "x.json").read_text())
    assert {row["method"] for row in data["results"]} == {"plain", "prompt-lookup"}
    assert set(data["milliseconds_by_nodes"]) == {"target"} and data["compiled_over_eager"] is None
    assert "(eager)" not in done.output and "Compiled forwards" not in done.output


def test_a_target_that_could_not_be_compiled_is_measured_once(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_it_is(name: str, **options: Any) -> Any:
        return load(name, **{**options, "compile": False})

    monkeypatch.setattr("outpace.api.model.load_target", as_it_is)
    arguments = (
        "--methods",
        "prompt-lookup",
        "--dtype",
        "float32",
        "--temperature",
        "0",
        "--output",
        str(tmp_path / "x.json"),
    )
    done = call(tiny, tmp_path, *arguments, "--compile")
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "x.json").read_text())
    assert {row["method"]: row["mode"] for row in data["results"]} == {
        "plain": "eager",
        "prompt-lookup": "eager",
    }
    assert "compile" not in data["settings"] and not data["compile_seconds"]


@pytest.mark.slow
def test_peers_run_on_the_same_prompts(tiny: Any, tmp_path: Path) -> None:
    wanted = ["--methods", "prompt-lookup:depth=3,speculative-sampling:depth=2", "--peer", "transformers"]
    done = call(tiny, tmp_path, *wanted, "--temperature", "0", "--output", str(tmp_path / "x.json"))
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "x.json").read_text())
    rows = {row["method"]: row for row in data["results"] if row["selection"] == "all"}
    assert [name for name, row in rows.items() if row["kind"] == "peer"] == [
        "transformers plain",
        "transformers assisted, best of 4 settings",
        "transformers prompt-lookup, best of 4 settings",
    ]
    assert all(row["divergence"]["different"] == 0 for row in rows.values())  # float64: the same text
    settings = data["peer_settings"]["transformers assisted, best of 4 settings"]
    assert settings["settings"] == ["its defaults", "depth=2", "depth=3", "depth=5"]
    speeds = settings["tokens_per_second"]["0"]
    assert settings["chosen"]["0"] == max(speeds, key=speeds.get) and len(speeds) == 4
    assert "Best settings of transformers assisted, best of 4 settings: " in done.output


@pytest.mark.slow
def test_batches_are_measured(tiny: Any, tmp_path: Path) -> None:
    wanted = ["--methods", "prompt-lookup", "--peer", "transformers", "--batch", "3", "--temperature", "0"]
    done = call(tiny, tmp_path, *wanted, "--output", str(tmp_path / "x.json"))
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "x.json").read_text())
    assert all(len(run["prompts"]) == 3 and run["tokens"] == 24 for run in data["runs"])
    assert {"plain", "plain, one at a time"} <= {run["method"] for run in data["runs"]}


def test_nothing_is_lost_when_it_is_interrupted(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, made = MethodContender.run, []

    def interrupted(self: MethodContender, *arguments: Any) -> RunOutcome:
        made.append(self.name)
        if len(made) == 8:  # two warm-up runs and five timed ones were made
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(MethodContender, "run", interrupted)
    done = call(
        tiny,
        tmp_path,
        "--methods",
        "prompt-lookup",
        "--temperature",
        "0",
        "--output",
        str(tmp_path / "x.json"),
    )
    assert done.exit_code == 1
    data = json.loads((tmp_path / "x.json").read_text())
    assert not data["complete"] and len(data["runs"]) == data["runs_made"] == 5 and data["runs_planned"] == 6
    assert "interrupted after 5 of 6 runs; they are in" in done.output.splitlines()[-1]
    assert "mean acceptance length" in done.output


def breaking(at: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this engine's run fail from its `at`-th call on."""
    run, made = MethodContender.run, []

    def broken(self: MethodContender, *arguments: Any) -> RunOutcome:
        made.extend([1] * (self.name == name))
        if self.name == name and len(made) >= at:
            raise RuntimeError("it broke")
        return run(self, *arguments)

    monkeypatch.setattr(MethodContender, "run", broken)


@pytest.mark.slow
def test_a_method_that_cannot_run_is_left_out_and_the_others_are_measured(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(1, "prompt-lookup", monkeypatch)
    wanted = [
        "--methods",
        "prompt-lookup,speculative-sampling",
        "--temperature",
        "0",
        "--output",
        str(tmp_path),
    ]
    done = call(tiny, tmp_path, *wanted)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "bench.json").read_text())
    assert data["failed"] == {"prompt-lookup": "RuntimeError: it broke"} and data["complete"]
    assert {row["method"] for row in data["results"]} == {"plain", "speculative-sampling"}
    assert "prompt-lookup was left out: RuntimeError: it broke" in (tmp_path / "bench.md").read_text()


def test_nothing_is_lost_when_a_method_breaks_in_the_middle(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking(3, "prompt-lookup", monkeypatch)  # warm-up, one timed run, then it breaks
    done = call(
        tiny,
        tmp_path,
        "--methods",
        "prompt-lookup",
        "--temperature",
        "0",
        "--output",
        str(tmp_path / "x.json"),
    )
    assert done.exit_code == 1 and "RuntimeError: it broke" in done.output
    assert len(json.loads((tmp_path / "x.json").read_text())["runs"]) >= 2


def test_an_interruption_before_the_first_run_is_one_sentence(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: MethodContender, *arguments: Any) -> RunOutcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(MethodContender, "run", interrupted)
    done = call(tiny, tmp_path, "--methods", "prompt-lookup", "--output", str(tmp_path / "x.json"))
    assert done.exit_code == 1 and "interrupted after 0 of" in done.output
    assert json.loads((tmp_path / "x.json").read_text())["results"] == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--temperature", "hot"], "takes numbers"),
        (["--temperature", "-1"], "a temperature is"),
        (["--methods", "depth=3"], "option without a method"),
        (["--prompts", "nowhere.jsonl"], "no prompts called"),
        (["--methods", "nothing-like-it"], "there is no method nothing-like-it"),
        (["--methods", "prompt-lookup:deep=3"], "no option of prompt-lookup called deep"),
        (["--max-tokens", "1000"], "every prompt is too long for"),
        (["--output", "x.txt"], "use a name that ends with .json, .md, .html"),
        (["--output", "/proc/nowhere/x.json"], "/proc/nowhere/x.json cannot be written"),
        (["--no-eager"], "--no-eager leaves nothing to measure: give --compile with it"),
    ],
)
def test_bad_input_is_one_sentence(tiny: Any, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = call(tiny, tmp_path, *arguments)
    assert done.exit_code == 2
    assert sentence in done.output.splitlines()[-1]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": float("nan"), "b": (1.5, None)})
    assert json.loads(path.read_text()) == {"a": None, "b": [1.5, None]}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": None, "b": [1.5, None]}
    assert finite({1: float("inf")}) == {"1": None}


def test_synthetic_drafts_are_measured_and_never_recommended(tiny: Any, tmp_path: Path) -> None:
    done = call(
        tiny, tmp_path, "--methods", "synthetic:rate=1.0:depth=3", "--temperature", "0,1", *outputs(tmp_path)
    )
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "out" / "bench.json").read_text())
    rows = [row for row in data["results"] if row["method"].startswith("synthetic") and row["runs"]]
    assert rows and all(row["acceptance_rate"] == 1 and row["efficiency"]["median"] > 0 for row in rows)
    assert all(row["divergence"]["different"] == 0 for row in rows if row["temperature"] == 0)
    assert data["recommendation"]["method"] is None and not (tmp_path / "method.json").exists()


def test_an_unknown_option_of_synthetic_drafts_is_named(tiny: Any, tmp_path: Path) -> None:
    done = call(tiny, tmp_path, "--methods", "synthetic:width=3")
    assert done.exit_code == 2 and "synthetic has no option width; it has rate and depth" in done.output


@pytest.mark.slow
def test_settings_hold_for_every_contender(tiny: Any, tmp_path: Path) -> None:
    settings = ("--top-k", "20", "--top-p", "0.9", "--min-p", "0.02", "--repetition-penalty", "1.3")
    out = str(tmp_path / "out.json")
    arguments = (
        "--methods",
        "prompt-lookup",
        "--temperature",
        "0,1",
        "--peer",
        "transformers",
        "--output",
        out,
    )
    done = call(tiny, tmp_path, *arguments, *settings)
    assert done.exit_code == 0, done.output
    data = json.loads(Path(out).read_text())
    assert {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}.items() <= data[
        "settings"
    ].items()
    greedy = [row for row in data["results"] if row["temperature"] == 0]
    assert len(greedy) > 2 and all(row["divergence"]["different"] == 0 for row in greedy if row["divergence"])
    done = call(tiny, tmp_path, "--min-p", "2")
    assert done.exit_code == 2 and "min_p is 2.0; use a number from 0 to 1" in done.output


@pytest.mark.parametrize(
    ("peers", "sentence"),
    [
        (
            "transformers,vllm=vllm/bin/python",
            "by python -m benchmarks.peers with the same options",
        ),
        (",", "--peer names no engine: it takes transformers"),
    ],
)
def test_a_peer_that_the_command_does_not_measure(
    tiny: Any, tmp_path: Path, peers: str, sentence: str
) -> None:
    done = call(tiny, tmp_path, "--peer", peers)
    assert done.exit_code == 2 and sentence in done.output and "loading" not in done.output


def test_a_bad_path_is_found_before_anything_is_loaded(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    done = call(tiny, tmp_path, "--output", str(tmp_path / "page.html"))
    assert done.exit_code == 2 and "it is a folder" in done.output and "loading" not in done.output


def test_a_file_that_cannot_be_written_at_the_end_loses_nothing(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "later"
    arguments = ("--methods", "prompt-lookup", "--temperature", "0", "--output", str(folder / "x.json"))
    monkeypatch.setattr(
        "outpace.cli.commands.bench._print", lambda *given: folder.rmdir() or folder.write_text("in the way")
    )
    done = call(tiny, tmp_path, *arguments)
    assert done.exit_code == 1 and f"{folder / 'x.json'} could not be written" in done.output
    kept = re.search(r"the measurement is in (\S+)", done.output)
    assert kept and json.loads(Path(kept[1]).read_text())["runs"]
    Path(kept[1]).unlink()


def test_json_is_printed_with_a_flag(tiny: Any, tmp_path: Path) -> None:
    done = call(tiny, tmp_path, "--methods", "prompt-lookup", "--temperature", "0", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["schema"] == "outpace-bench/2"


@pytest.mark.slow
def test_reports_say_that_weights_and_kv_cache_are_compressed(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.md", "a.html")]
    options = ["--methods", "autoregressive", "--num-prompts", "1", "--rounds", "1", "--max-tokens", "4"]
    options += ["--compile", "--no-eager", "--weights", "int4", "--kv-cache", "int8", "--temperature", "0"]
    done = CliRunner().invoke(
        APP, ["--target", "zoo:draft", *options, *(f"--output={file}" for file in files)]
    )
    assert done.exit_code == 0, done.output
    for text in (done.output, *(file.read_text(encoding="utf-8") for file in files)):
        said = " ".join(text.split())
        assert "its weights compressed to int4 and its keys and values rounded to int8." in said
