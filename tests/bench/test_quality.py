"""What methods cost whose texts are not the target's: how texts are judged, and what `outpace bench` says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from outpace.bench.measure import quality
from outpace.bench.measure.knob import Knob
from outpace.bench.measure.quality import quality_of
from outpace.bench.measure.run import EncodedPrompt, Run, Trial
from outpace.bench.measure.text_quality import TextQuality, is_right, text_quality
from outpace.cli.commands.bench import bench
from outpace.core.sampling_params import SamplingParams
from outpace.proof.sampling_cases import stated
from outpace.recipes import parse_methods

APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(bench)
LOSSY = "scd:depth=2"


@pytest.mark.parametrize("penalty", [1.0, 3.0])
@pytest.mark.parametrize("length", [1, 90])
def test_a_text_is_judged_as_one_forward_of_the_model_tells(loaded: Any, penalty: float, length: int) -> None:
    target = loaded[0].target
    random = torch.Generator().manual_seed(length)
    prompt = torch.randint(target.vocab, (length,), generator=random)
    text = torch.randint(target.vocab, (length,), generator=random).tolist()
    with torch.inference_mode():
        whole = torch.tensor([[*prompt.tolist(), *text]])
        logits = target.model(whole, use_cache=False).logits[0, length - 1 : -1].double()
    params = SamplingParams(max_tokens=200, repetition_penalty=penalty)
    before = [(*prompt.tolist(), *text[:at]) for at in range(length)]
    changed = [stated(row[None], [known], params, length) for row, known in zip(logits, before, strict=True)]
    best = torch.cat(changed).argmax(1).tolist()
    text[-1] = best[-1]
    found = text_quality(target, prompt, text, params)
    own = logits.log_softmax(1)[torch.arange(length), text]
    assert found.tokens == length and found.loss == pytest.approx(-float(own.sum()), rel=1e-6)
    assert found.unlike == sum(token != other for token, other in zip(text, best, strict=True)) < length


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("4 + 7 + 0 = 11\n34 + 7 = 41", "41", True),
        ("The sum is 41.", " 41", True),
        ("41 and 7", "41", False),
        ("none", "41", False),
        ("It is -3.5", "-3.5", True),
        ("\na = 1\n", "a = 1", True),
        ("a = 1 # new", "a = 1", False),
        ("A = 1", "a = 1", False),
    ],
)
def test_an_answer_is_the_last_number_or_the_whole_text(text: str, answer: str, right: bool) -> None:
    assert is_right(text, answer) is right


def run(name: str, prompt: int, heat: float, *texts: TextQuality, round: int = 0) -> Run:
    case = EncodedPrompt(f"p{prompt}", "code", torch.zeros(3, dtype=torch.int64))
    trial = Trial(prompt, (case,) * len(texts), heat, round)
    return Run(name, trial, 1.0, None, None, None, ((1,),) * len(texts), texts or None)


def test_losses_are_per_token_and_compared_with_plain_decoding_of_the_same_prompts() -> None:
    pairs = [
        (run("m", prompt, 1.0, TextQuality(4, 2.0 + prompt, 1, None)), run("plain", prompt, 1.0, plain))
        for prompt, plain in enumerate([TextQuality(2, 3.0, 0, None)] * 4)
    ]
    found = quality_of(pairs)
    assert found and (found.right, found.answered, found.unlike) == (0, 0, None)
    assert found.loss.mean == pytest.approx((2 + 3 + 4 + 5) / 16)
    assert found.excess and found.excess.mean == pytest.approx((2 + 3 + 4 + 5) / 16 - 1.5)
    assert found.excess.low < found.excess.mean < found.excess.high < 0
    even = quality_of([(run("m", p, 1.0, TextQuality(4, 8.0, 0, None)), pairs[p][1]) for p in range(4)])
    assert even and even.excess and even.excess.low == even.excess.high == 0.5  # in every resample
    few = quality_of(pairs[:2])
    assert few and not few.loss.known and few.excess and not few.excess.known


def test_greedy_texts_are_compared_with_the_target_s_choices_and_all_with_the_answers() -> None:
    greedy = [
        (run("m", prompt, 0.0, TextQuality(10, 1.0, prompt, prompt > 1), round=number),) * 2
        for prompt in range(4)
        for number in range(2)
    ]
    sampled = [
        (run("m", p, 0.5, TextQuality(5, 9.0, 5, None)), run("plain", p, 0.5, TextQuality(5, 4.0, 0, None)))
        for p in range(4)
    ]
    found = quality_of([*greedy, *sampled])
    assert found and found.unlike and found.unlike.mean == pytest.approx((0 + 1 + 2 + 3) / 40)
    assert (found.right, found.answered) == (4, 8) and found.excess and found.excess.mean == 1.0
    plain = quality_of([(plain, plain) for _, plain in sampled])
    assert plain and plain.excess is None and plain.loss.mean == 0.8
    assert quality_of([(run("m", 0, 1.0), sampled[0][1])]) is None  # was not measured


def call(tiny: Any, folder: Path, *arguments: str) -> Result:
    prompts = folder / "sums.jsonl"
    rows = [{"prompt": f"{a} + 2 =", "chat": False, "answer": a + 2} for a in range(3)]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
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
    options += ["--max-tokens", "8", "--rounds", "2", "--threads", "1", "--device", "cpu"]
    return CliRunner().invoke(APP, [*options, "--selection", "all", *arguments])


def rows_of(done: Result, path: Path) -> dict[tuple[str, float | None], dict[str, Any]]:
    assert done.exit_code == 0, done.output
    return {(row["method"], row["temperature"]): row for row in json.loads(path.read_text())["results"]}


@pytest.mark.slow
def test_quality_stands_beside_speed_where_a_method_changes_the_texts(tiny: Any, tmp_path: Path) -> None:
    path, page = tmp_path / "x.json", tmp_path / "x.html"
    wanted = ["--methods", f"prompt-lookup,{LOSSY},scd:beta=0,alpha=0", "--output", str(path)]
    done = call(tiny, tmp_path, *wanted, "--html", str(page))
    rows = rows_of(done, path)
    plain, lossy = (rows[name, 0.0]["quality"] for name in ("plain", LOSSY))
    assert plain["unlike"] == {"mean": 0, "low": 0, "high": 0} and plain["excess"] is None
    assert lossy["unlike"]["mean"] > 0 and lossy["answered"] == plain["answered"] == 6
    assert lossy["loss"]["mean"] > plain["loss"]["mean"] > 0
    plain, lossy = (rows[name, 1.0]["quality"] for name in ("plain", LOSSY))
    assert lossy["excess"]["mean"] == pytest.approx(lossy["loss"]["mean"] - plain["loss"]["mean"])
    assert lossy["excess"]["low"] <= lossy["excess"]["mean"] <= lossy["excess"]["high"]
    exact = [rows[name, 0.0] for name in ("prompt-lookup", "scd:beta=0,alpha=0")]
    assert all(row["lossless"] and row["quality"] is None for row in exact)
    [line] = re.findall(r"^prompt-lookup .*= target.*", done.stdout.partition("1: quality")[2], re.M)[:1]
    assert line.count("= target") == 3 and "What is = target promises its distribution" in done.stdout
    text = page.read_text()
    assert text.index("Speed and quality: sums, temperature 0") < text.index(
        "Speed and quality: sums, temperature 1"
    )
    assert text.count('<div class="plot"') == 2 and "<th>exact match</th>" in text


@pytest.mark.slow
def test_without_such_a_method_nothing_is_judged(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(*_: Any) -> None:
        raise AssertionError("a text was judged")

    monkeypatch.setattr(quality, "text_quality", judged)
    path, page = tmp_path / "x.json", tmp_path / "x.html"
    done = call(tiny, tmp_path, "--methods", "prompt-lookup", "--output", str(path), "--html", str(page))
    assert all(row["quality"] is None for row in rows_of(done, path).values())
    assert ": quality" not in done.stdout and "Loss: -log p" not in done.stdout
    assert "Speed and quality" not in page.read_text() and 'class="plot"' not in page.read_text()


@pytest.mark.slow
def test_a_knob_is_measured_with_each_value_and_drawn_as_a_line(tiny: Any, tmp_path: Path) -> None:
    path, page = tmp_path / "x.json", tmp_path / "x.html"
    wanted = ["--methods", f"prompt-lookup,{LOSSY}", "--pareto", "beta=0,0.5,4", "--ignore-eos"]
    done = call(tiny, tmp_path, *wanted, "--output", str(path), "--html", str(page))
    rows = rows_of(done, path)
    curve = [rows[f"{LOSSY},beta={value}", 0.0]["quality"] for value in ("0", "0.5", "4")]
    shares = [each["unlike"]["mean"] for each in curve]
    assert shares[0] == 0 < shares[2] and shares == sorted(shares)  # more weight of the draft, fewer choices
    assert curve[0]["answered"] == 0  # texts that go on behind their end
    assert {name for name, _ in rows} == {
        "plain",
        "prompt-lookup",
        *(f"{LOSSY},beta={value}" for value in ("0", "0.5", "4")),
    }
    text = page.read_text()
    lines = re.findall(r'<polyline points="([^"]+)"', text)
    assert [len(line.split()) for line in lines] == [1, 1, 3] * 2
    assert text.count('class="note"') >= 6 and "beta=0.5</span>" in text and f"{LOSSY}</li>" in text


@pytest.mark.parametrize(
    ("methods", "knob", "sentence"),
    [
        (
            LOSSY,
            "beta",
            "takes an option and two values or more, as in epsilon=0.05,0.1, not 'beta'",
        ),
        (LOSSY, "beta=0.5", "two values or more"),
        (
            LOSSY,
            "gamma=1,2",
            "no LOSSY method here has an option gamma (scd has draft, beta, alpha, ",
        ),
        ("prompt-lookup", "depth=1,2", "--pareto is for LOSSY methods: name one with --methods"),
        (LOSSY, "beta=0.5,much", "scd: beta is a number, not 'much'"),
    ],
)
def test_a_knob_that_nothing_has_is_refused(
    tiny: Any, tmp_path: Path, methods: str, knob: str, sentence: str
) -> None:
    done = call(tiny, tmp_path, "--methods", methods, "--pareto", knob)
    assert done.exit_code == 2 and sentence in done.output.splitlines()[-1]


@pytest.mark.slow
def test_a_benchmark_of_exact_methods_refuses_the_others(tiny: Any, tmp_path: Path) -> None:
    done = call(tiny, tmp_path, "--exact", "--methods", f"prompt-lookup,{LOSSY}")
    assert done.exit_code == 2 and "scd is LOSSY with these options: give beta=0.0" in done.output
    path, fast = tmp_path / "x.json", ["--temperature", "0", "--rounds", "1", "--num-prompts", "1"]
    wanted = ["--exact", "--methods", "scd:beta=0,alpha=0", "--family", "relaxed acceptance", *fast]
    done = call(tiny, tmp_path, *wanted, "--output", str(path))
    assert {name for name, _ in rows_of(done, path)} == {"plain", "scd:beta=0,alpha=0"}
    assert "speculative-cascades was left out: speculative-cascades is LOSSY with" in done.stderr


def test_every_lossy_method_with_the_option_gets_the_values() -> None:
    methods = parse_methods("scd:alpha=0.5,depth=3,speculative-cascades,mcsd,synthetic:rate=0.5")
    spread, curves = Knob.parse("alpha=0.1,0.2,0.1").spread(methods)
    labels = [each.label for each in spread]
    assert labels == [
        "scd:depth=3,alpha=0.1",
        "scd:depth=3,alpha=0.2",
        "speculative-cascades:alpha=0.1",
        "speculative-cascades:alpha=0.2",
        "mcsd",
        "synthetic:rate=0.5",
    ]
    assert curves[labels[1]] == ("scd:depth=3", "alpha=0.2") and len(curves) == 4
