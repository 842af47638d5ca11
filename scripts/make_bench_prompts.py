"""Write the prompt sets arithmetic.jsonl and edit.jsonl of `outpace bench` from the zoo's held-out tasks.

Deterministic: `python scripts/make_bench_prompts.py` always writes the same tasks.
"""

from __future__ import annotations

import json
from pathlib import Path

from outpace.bench.measure.workload import FOLDER
from zoo_training.tasks import held_out

COUNT = 40


def lines(kind: str) -> list[str]:
    """JSON lines of the first COUNT held-out tasks of a kind: id and the turns of the chat."""
    tasks = held_out(kind, COUNT)
    rows = [{"id": f"{kind}/{index}", "turns": list(task.turns)} for index, task in enumerate(tasks)]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def main(folder: Path = FOLDER) -> None:
    for kind in ("arithmetic", "edit"):
        (folder / f"{kind}.jsonl").write_text("\n".join(lines(kind)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
