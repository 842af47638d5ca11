"""Print how the code stands against its line budget. Warns, never fails: a budget is a question, not a rule."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DECODE, CORE, FILE = 150, 1000, 250


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def report(root: Path) -> list[str]:
    """One line for each budget, then one for each file over it."""
    package = root / "outpace"
    counts = {path.relative_to(root).as_posix(): lines(path) for path in sorted(package.rglob("*.py"))}
    core = sum(count for name, count in counts.items() if name.startswith("outpace/core/"))
    rows = [("outpace/decode.py", counts.get("outpace/decode.py", 0), DECODE), ("outpace/core", core, CORE)]
    rows += [
        (name, count, FILE) for name, count in counts.items() if count > FILE and name != "outpace/decode.py"
    ]
    said = [
        f"{'over' if count > limit else 'ok':>4}  {name}: {count} of {limit} lines"
        for name, count, limit in rows
    ]
    return [f"line budget ({len(counts)} files, {sum(counts.values())} lines)", *said]


if __name__ == "__main__":
    print("\n".join(report(ROOT)))
