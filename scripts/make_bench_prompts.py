"""Write the prompt sets arithmetic.jsonl and edit.jsonl of `outpace bench` from the zoo's held-out tasks.

Deterministic: `python scripts/make_bench_prompts.py` always writes the same tasks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from outpace.bench.measure.workload import FOLDER
from zoo_training.tasks import held_out

COUNT = 40


def lines(kind: str) -> list[str]:
    """JSON lines of the first COUNT held-out tasks of a kind: id, the turns of the chat, and the answer,
    without the steps that lead to a number."""
    rows = [
        {
            "id": f"{kind}/{index}",
            "turns": list(task.turns),
            "answer": re.findall(r"\d+", task.answer)[-1] if kind == "arithmetic" else task.answer,
        }
        for index, task in enumerate(held_out(kind, COUNT))
    ]
    return [json.dumps(row, ensure_ascii=False) for row in rows]


def main(folder: Path = FOLDER) -> None:
    for kind in ("arithmetic", "edit"):
        (folder / f"{kind}.jsonl").write_text("\n".join(lines(kind)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
