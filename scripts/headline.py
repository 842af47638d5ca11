"""Update the headline speedup in the README from docs/results/engine/engine-cpu.json.gz.

`python scripts/headline.py` rewrites the section; with --check it exits with an error if it is out of date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.paired import Comparison, Result, compare, load

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULT = ROOT / "docs/results/engine/engine-cpu.json.gz"
METHOD = "speculative-sampling"
PEER = "transformers assisted*"  # transformers' assisted generation with the fastest of its measured settings
SECTION = re.compile(r"(<!-- headline:begin -->\n).*?(<!-- headline:end -->)", re.DOTALL)


def interval(comparison: Comparison) -> str:
    """Text: median speedup with its 95 % bootstrap interval."""
    ratio = comparison.ratio
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def measured(result: Result, method: str, temperature: float) -> Comparison:
    """Speedup of a method over plain decoding, all prompt sets pooled; ValueError if it was not measured."""
    found = compare(result, method, workload="all", temperature=temperature)
    if found is None:
        raise ValueError(f"{RESULT.name} has no {method} at temperature {temperature:g}")
    return found


def headline(result: Result) -> str:
    """The headline paragraph: speedups, measurement conditions, and transformers' speedups for comparison."""
    greedy, sampled = (measured(result, METHOD, temperature) for temperature in (0.0, 1.0))
    peers = [measured(result, PEER, temperature) for temperature in (0.0, 1.0)]
    source, settings = result["provenance"], result["settings"]
    prompts = ", ".join(settings["prompts"])
    return (
        f"**{greedy.ratio.median:.1f} times as fast as plain decoding**: `{METHOD}` at temperature 0, "
        f"batch {settings['batch']}, {greedy.prompts} prompts of {prompts}, the zoo's 14M-parameter "
        f"target and its draft on a {source['device']}. Medians of paired runs with 95 % intervals: "
        f"{interval(greedy)} at temperature 0, {interval(sampled)} at temperature 1; transformers' "
        "assisted generation with the same models, at the best of its settings: "
        f"{interval(peers[0])} and {interval(peers[1])}.\n"
    )


def filled(readme: str) -> str:
    """The README's text with an updated headline section."""
    text = headline(load(RESULT))
    return SECTION.sub(lambda match: match[1] + text + match[2], readme)


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit("README.md's headline is out of date: run scripts/headline.py" if new != old else 0)
    README.write_text(new, encoding="utf-8")
