"""Tokens per step by the sizes of drafts: `python -m benchmarks.draft_sizes`.

Trees, beams, vocabularies and numbers of heads are compared with the package's models and heads on the
built-in prompts, prompt by prompt. Tokens per step do not depend on the machine. A run that was stopped goes
on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import outpace
from benchmarks.head_orderings import TEMPERATURES, Length, measured, ordering, to_tables, write_lengths
from outpace.api.prompts import encode
from outpace.bench.measure.provenance import threads
from outpace.bench.measure.workload import BUILT_IN, load_items
from outpace.cli.commands.index import special_tokens
from outpace.console import progress
from outpace.indexes import store
from outpace.indexes.token_counts import TokenCounts
from outpace.tables import print_tables
from zoo_training import tasks
from zoo_training.corpus import read_corpus
from zoo_training.drafters import TARGET

NODES = 25  # of EAGLE's static tree
MORE_NODES = 2 * NODES
TWO_HEADS = "zoo:eagle,zoo:hass"
DOCUMENTS = 200  # of each kind, that tokens are counted in
# name -> recipe and its options
DRAFTED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "draft model": ("speculative-sampling", {"draft": "zoo:draft"}),
    "eagle, chain": ("eagle", {"tree": "chain"}),
    "eagle, static tree": ("eagle", {}),
    "eagle2, 25 nodes": ("eagle2", {"num_nodes": NODES}),
    "eagle2, 59 nodes": ("eagle2", {}),
    "medusa, chain": ("medusa", {"tree": "chain"}),
    "medusa, 63 nodes": ("medusa", {}),
    "redrafter, 1 beam": ("redrafter", {"width": 1}),
    "redrafter, 4 beams": ("redrafter", {"width": 4}),
    "redrafter, 10 beams": ("redrafter", {}),
    "eagle2 with HASS's head, 50 nodes": ("eagle2", {"head": "zoo:hass", "num_nodes": MORE_NODES}),
    "taps, merged": ("taps", {"heads": TWO_HEADS, "num_nodes": NODES}),
    "taps, the more confident head": (
        "taps",
        {"heads": TWO_HEADS, "routing": "confidence", "num_nodes": MORE_NODES},
    ),
    "taps, averaged head": ("taps", {"heads": TWO_HEADS, "routing": "average", "num_nodes": NODES}),
}
SIZES = (256, 1024, 2048)  # of the 4,096 tokens of the zoo
# the same for drafts that leave out rare tokens
TRIMMED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    f"{name}, {size} tokens": (name, {"size": size, **options})
    for name, options in (("vocab-trim", {"draft": "zoo:draft"}), ("fr-spec", {"num_nodes": NODES}))
    for size in SIZES
}
ORDERINGS = (
    ("eagle2, 25 nodes", "eagle, static tree"),
    ("eagle2, 59 nodes", "eagle, static tree"),
    ("eagle, static tree", "eagle, chain"),
    ("medusa, 63 nodes", "medusa, chain"),
    ("redrafter, 4 beams", "redrafter, 1 beam"),
    ("redrafter, 10 beams", "redrafter, 4 beams"),
    ("taps, merged", "eagle2 with HASS's head, 50 nodes"),
    ("taps, the more confident head", "eagle2 with HASS's head, 50 nodes"),
    ("taps, averaged head", "eagle2, 25 nodes"),
    *((f"vocab-trim, {size} tokens", "draft model") for size in SIZES),
    *((f"fr-spec, {size} tokens", "eagle2, 25 nodes") for size in SIZES),
)


def write_counts(path: Path, target: outpace.Model) -> None:
    """Count the tokens of code and of tasks with their answers, none of which is a built-in prompt."""
    pick = random.Random(0)
    texts: list[Any] = pick.choices(read_corpus().train, k=DOCUMENTS)
    for kind in ("edit", "arithmetic", "chat"):
        made = [tasks.make(kind, pick) for _ in range(DOCUMENTS)]
        texts += [[*each.messages, {"role": "assistant", "content": each.answer}] for each in made]
    documents = [encode(target.tokenizer, text, target.target.vocab) for text in texts]
    store.save(TokenCounts.build(documents, special_tokens(target.tokenizer)), path)


def main(
    json: Annotated[Path, typer.Option(help="File to write.")],
    folder: Annotated[Path, typer.Option(help="Folder of what was measured.")] = Path("out/draft-sizes"),
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each built-in set.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 96,
    number: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
) -> None:
    """Compare tokens per step of drafts of several sizes."""
    items = [item for source in BUILT_IN for item in load_items(source, prompts)]
    folder.mkdir(parents=True, exist_ok=True)
    counts, lengths = folder / "counts", list[Length]()
    with threads(number), progress(len(DRAFTED) + len(TRIMMED)) as advance:
        target = outpace.load(TARGET, dtype="float32")
        write_counts(counts, target)
        for name, (recipe, options) in {**DRAFTED, **TRIMMED}.items():
            given = {**options, "counts": str(counts)} if name in TRIMMED else options
            lengths += measured(name, recipe, given, folder, 0, target, items, max_tokens)
            advance(name, 1)
    found = [
        ordering(lengths, name, over, temperature) for name, over in ORDERINGS for temperature in TEMPERATURES
    ]
    print_tables(to_tables(lengths, found))
    write_lengths(json, "outpace-draft-sizes/1", {"max_tokens": max_tokens}, lengths, found, number)


if __name__ == "__main__":
    typer.run(main)
