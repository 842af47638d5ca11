"""Update the tables of speedups in the pages of docs/ from the files of docs/results.

`python scripts/speedup_tables.py` rewrites them; with --check it exits with an error if one is out of date.
"""

from __future__ import annotations

import re
import sys

from docs_hooks import ROOT, SPEEDUPS, speedups_table


def filled(page: str) -> str:
    """The text of a page with its tables rewritten."""

    def section(found: re.Match[str]) -> str:
        first = found[0].partition("\n")[0]
        table = speedups_table(found["path"], found["methods"].split(","))
        return f"{first}\n\n{table}\n\n<!-- speedups:end -->"

    return SPEEDUPS.sub(section, page)


def main() -> None:
    old = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (now := filled(page)) != page:
            old.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(now, encoding="utf-8")
    if old and "--check" in sys.argv:
        sys.exit(f"tables of {', '.join(old)} are out of date: run python scripts/speedup_tables.py")


if __name__ == "__main__":
    main()
