"""RASD: what its model's tree is pruned by. What it shares with READER is tested in
`test_rasd_and_reader`."""

from __future__ import annotations

import pytest

import outpace

CODE = "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3


@pytest.mark.slow
def test_pruning_saves_nodes_and_loses_little() -> None:
    # in float32 both write the same text, on any machine
    target, draft = (outpace.load(name, dtype="float32") for name in ("zoo:target", "zoo:draft"))
    options = {"draft": draft, "temperature": 0, "max_tokens": 64}
    few, all_ = (
        outpace.generate(target, CODE, "rasd", num_first_tokens=count, **options)[0].statistics
        for count in (10, 4096)
    )
    assert few.num_draft_tokens / few.num_steps <= all_.num_draft_tokens / all_.num_steps
    assert few.num_tokens / few.num_steps > 0.9 * all_.num_tokens / all_.num_steps
