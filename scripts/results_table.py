"""Fill the README's results section from docs/results/*.json. Numbers get there no other way.

`python scripts/results_table.py` rewrites the section; with --check it only says whether it is up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results"
SECTION = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
NOTHING = "No measurement has been published here yet. `outpace bench` makes yours.\n"


def table(result: dict[str, Any]) -> str:
    """One result file as a sentence saying what was measured, and a row for each method."""
    lines = [result["setting"], "", "| " + " | ".join(result["columns"]) + " |"]
    lines += ["|---" + "|---:" * (len(result["columns"]) - 1) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in result["rows"]]
    return "\n".join([*lines, "", f"Made by `{result['command']}`.", ""])


def section(results: Path) -> str:
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    return "\n".join(table(result) for result in loaded if "columns" in result) or NOTHING


def filled(readme: str, results: Path) -> str:
    text = section(results)
    return SECTION.sub(lambda match: match[1] + text + match[2], readme)


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = filled(old, RESULTS)
    if "--check" in sys.argv:
        sys.exit("README.md's results are out of date: run scripts/results_table.py" if new != old else 0)
    README.write_text(new, encoding="utf-8")
