"""Texts that were generated in a benchmark, to be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outpace.bench.measure.measurement import Measurement
from outpace.bench.report.summary import ResultRow

MAX_WORKLOADS = 3
LETTERS = 400  # of a prompt or text that are shown


@dataclass(frozen=True)
class Sample:
    """Texts for one prompt, the end of which is shown."""

    workload: str
    temperature: float
    prompt: str
    texts: Sequence[tuple[str, str]]  # (contenders that generated it, text)


def samples(of: Measurement, rows: Sequence[ResultRow]) -> list[Sample]:
    """The texts by plain decoding and by the fastest method for the first prompt of each workload, at the
    first temperature; none without a tokenizer."""
    if of.tokenizer is None:
        return []
    plain = of.contenders[0].name
    ours = [row for row in of.decisive(rows) if row.kind == "outpace" and row.contender != plain]
    fastest = max(ours, key=lambda row: row.speedup.median, default=None)
    shown = [plain, *([fastest.contender] if fastest else [])]
    temperature = of.temperatures[0]
    outputs = {
        (run.contender, case.id): output
        for run in reversed(of.runs)  # the first run of a contender and prompt is kept
        if run.trial.temperature == temperature
        for case, output in zip(run.trial.cases, run.outputs, strict=True)
    }
    found: list[Sample] = []
    for workload in list(dict.fromkeys(case.workload for case in of.cases))[:MAX_WORKLOADS]:
        case = next(each for each in of.cases if each.workload == workload)
        names: dict[str, list[str]] = {}
        for name in shown:
            if (output := outputs.get((name, case.id))) is not None:
                names.setdefault(of.tokenizer.decode(output, skip_special_tokens=True), []).append(name)
        prompt = of.tokenizer.decode(case.tokens.tolist(), skip_special_tokens=True)
        texts = [(", ".join(by), _cut(text)) for text, by in names.items()]
        if texts:
            found.append(Sample(workload, temperature, _cut(prompt, at_start=True), texts))
    return found


def _cut(text: str, *, at_start: bool = False) -> str:
    if len(text) <= LETTERS:
        return text
    return f"...{text[-LETTERS:]}" if at_start else f"{text[:LETTERS]}..."
