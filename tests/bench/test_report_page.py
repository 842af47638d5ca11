"""The HTML page of a benchmark: what is on top, how the winner is used, and sample texts."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
import torch

from outpace.bench.measure.measurement import Measurement
from outpace.bench.measure.recommend import MethodChoice
from outpace.bench.measure.run import EncodedPrompt, Run, Trial
from outpace.bench.report.html import to_html
from outpace.bench.report.report import to_markdown
from outpace.bench.report.samples import LETTERS, samples
from outpace.bench.report.usage import commands, flags
from outpace.core.sampling_params import SamplingParams

SECONDS = {"plain": 2.0, "fast": 1.0, "slow": 4.0}
TEMPERATURES = [0.0, 1.0]


class Named:
    kind, mode, single, precision = "outpace", "eager", False, ""

    def __init__(self, name: str) -> None:
        self.name, self.options = name, dict[str, Any]()

    def lossless(self, temperature: float) -> bool:
        return True


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(map(chr, tokens))


def measured(**fields: Any) -> Measurement:
    """Four prompts of code at two temperatures; the texts of `slow` differ."""
    line_up: Any = [Named(name) for name in SECONDS]
    cases = [EncodedPrompt(f"p{index}", "code", torch.tensor([*map(ord, "prompt")])) for index in range(4)]
    runs = [
        Run(name, Trial(index, (case,), heat, 0), seconds, 0.0, 0, None, (tuple(map(ord, text(name))),))
        for heat in TEMPERATURES
        for index, case in enumerate(cases)
        for name, seconds in SECONDS.items()
    ]
    return Measurement(
        contenders=line_up,
        cases=cases,
        sampling=SamplingParams(max_tokens=12),
        temperatures=TEMPERATURES,
        rounds=1,
        batch=1,
        seed=0,
        choices={
            "fast": MethodChoice("mcsd", {"tree": (4, 2), "adaptive": False, "draft": "my draft"}, "my draft")
        },
        provenance={"versions": {}, "device": "", "threads": 1, "commit": None, "date": "", "argv": []},
        settings={"target": "my model", "compile": True, "weights": "int4", "loading": {"dtype": "float32"}},
        selection="all",
        tokenizer=Letters(),
        runs=runs,
        **fields,
    )


def text(name: str) -> str:
    return ("<b> slow" if name == "slow" else "the same") * 80


def test_the_advice_is_on_top_then_chart_and_table_over_everything_and_the_rest_folded() -> None:
    found = measured()
    page = to_html(found, found.rows())
    places = [
        page.index(each) for each in ("Recommendation: use fast", "outpace serve", "Speedups: code, all")
    ]
    assert places == sorted(places) and places[-1] < page.index('<div class="bars">') < page.index("<details")
    assert page.count("<details>") == page.count("</details>") == 3 + 1  # parts, and a sample
    top = page[: page.index("<details>")]
    assert top.count("<table") == 1 and top.index("<table") > top.index('<div class="bars">')
    assert re.findall(r"<td>([^<]*)</td>", top)[5:8] == ["fast", "2.00 (2.00-2.00)", "640.0"]
    body = page[page.index("<body>") :]
    first = body.index("<h1>Recommendation: use fast")
    assert first < min(body.index("<h2"), body.index("<pre"))
    assert "<b>" not in page
    assert re.findall(r"width: ([\d.]+)%; background", page)[:3] == ["50.0", "100.0", "25.0"]


def test_the_winner_is_used_by_the_printed_commands() -> None:
    found = measured()
    served, generated = map(shlex.split, commands(found, found.rows()))
    loading = ["--dtype", "float32", "--compile", "--weights", "int4"]
    method = ["--method", "mcsd", "--tree", "4,2", "--no-adaptive", "--draft", "my draft"]
    assert served == ["outpace", "serve", "my model", *loading, *method]
    assert generated == ["outpace", "generate", "--target", "my model", *loading, *method, "Your prompt"]
    assert f"```bash\n{shlex.join(served)}\n" in to_markdown(found, found.rows())
    assert flags({"max_ngram": 3, "on": True}) == ["--max-ngram", "3", "--on"]


def test_of_a_disturbed_measurement_nothing_is_used() -> None:
    found = measured(loads=[50.0] * 8)
    page = to_html(found, found.rows())
    assert commands(found, found.rows()) == [] and "outpace serve" not in page
    assert page.count("other programs used the machine") == 1 and 'class="warning"' in page


def test_sample_texts_are_those_of_plain_decoding_and_of_the_fastest_method() -> None:
    found = measured()
    [sample] = samples(found, found.rows())
    assert (sample.workload, sample.temperature, sample.prompt) == ("code", 0.0, "prompt")
    assert sample.texts == [("plain, fast", f"{text('plain')[:LETTERS]}...")]
    found.runs = [replace(run, seconds=0.5) if run.contender == "slow" else run for run in found.runs]
    [sample] = samples(found, found.rows())
    assert [names for names, _ in sample.texts] == ["plain", "slow"]
    assert "&lt;b&gt; slow" in to_html(found, found.rows())
    found.tokenizer = None
    assert samples(found, found.rows()) == []


@pytest.mark.parametrize("seconds", [2.0, 3.0])
def test_a_wide_interval_is_said(seconds: float) -> None:
    found = measured()
    found.runs = [
        replace(run, seconds=seconds) if run.contender == "fast" and run.trial.index else run
        for run in found.runs
    ]
    page = " ".join(to_html(found, found.rows()).split())
    widest = int(re.findall(r"the widest reaches (\d+) % up or down", page)[0])
    assert widest == {2.0: 100, 3.0: 200}[seconds]
