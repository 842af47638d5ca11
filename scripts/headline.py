"""Fill the README's headline number from docs/results/engine/engine-cpu.json.

`python scripts/headline.py` rewrites the section; with --check it only reports whether it is up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULT = ROOT / "docs/results/engine/engine-cpu.json"
METHOD = "speculative-sampling"
SECTION = re.compile(r"(<!-- headline:begin -->\n).*?(<!-- headline:end -->)", re.DOTALL)


def interval(row: dict[str, Any]) -> str:
    """A speedup with its 95 % interval."""
    speedup = row["speedup"]
    return f"{speedup['median']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})"


def headline(result: dict[str, Any]) -> str:
    """One paragraph: speedups, their conditions, and transformers at the best of its settings."""

    def rows(temperature: float) -> list[dict[str, Any]]:
        return [
            row
            for row in result["results"]
            if row["headline"] and row["workload"] == "all" and row["temperature"] == temperature
        ]

    greedy, sampled = ([row for row in rows(t) if row["method"] == METHOD][0] for t in (0, 1))
    assisted = [row for row in rows(0) if row["method"].startswith("transformers assisted")]
    peer = max(assisted, key=lambda row: row["speedup"]["median"])
    source, settings = result["provenance"], result["settings"]
    prompts = ", ".join(settings["prompts"])
    return (
        f"**{greedy['speedup']['median']:.1f} times as fast as plain decoding**: `{METHOD}` at "
        f"temperature 0, batch {settings['batch']}, {greedy['prompts']} prompts of {prompts}, "
        f"the zoo's 14M-parameter target and its draft on a {source['device']}. Medians with 95 % intervals: "
        f"{interval(greedy)} at temperature 0, {interval(sampled)} at temperature 1; transformers' assisted "
        f"generation with the same models, at the best of its settings, {interval(peer)} at temperature 0.\n"
    )


def filled(readme: str) -> str:
    """The README with its headline up to date."""
    text = headline(json.loads(RESULT.read_text(encoding="utf-8")))
    return SECTION.sub(lambda match: match[1] + text + match[2], readme)


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = filled(old)
    if "--check" in sys.argv:
        sys.exit("README.md's headline is out of date: run scripts/headline.py" if new != old else 0)
    README.write_text(new, encoding="utf-8")
