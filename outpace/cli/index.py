"""`outpace index`: build indexes of text for methods that draft from it, and show what is in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli.failures import Debug, plainly
from outpace.cli.options import Json
from outpace.cli.output import print_json, print_table

if TYPE_CHECKING:
    from outpace.indexes.store import Index

app = typer.Typer(
    help="Indexes of text, for methods that draft from it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
FROM_TEXT = ("suffix-array", "suffix-automaton", "suffix-tree", "trigrams")
FROM_STATES = "dense"  # hidden states of texts that a model reads
FROM_A_MODEL = ("adjacency", "logit-ngrams")  # logits, which no text has
Texts = Iterator[list[int]]


@app.command("build")
@plainly
def build(
    source: Annotated[
        list[Path], typer.Option("--from", help="A text, a folder of texts, or .jsonl; may be repeated.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    kind: Annotated[str, typer.Option(help=f"{', '.join(FROM_TEXT)} or {FROM_STATES}.")] = "suffix-array",
    tokenizer: Annotated[str, typer.Option(help="The model that will use it.")] = "zoo:target",
    most_tokens: Annotated[
        int, typer.Option(min=1, help="Of a suffix-tree: it keeps the newest documents with so many tokens.")
    ] = 1 << 22,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Index texts, or what was generated before: JSON lines with "text", or with token ids as "tokens"."""
    if kind in FROM_A_MODEL:
        raise ValueError(
            f"{kind} learns from a model while it decodes, not from text: use {', '.join(FROM_TEXT)}"
        )
    if kind not in (*FROM_TEXT, FROM_STATES):
        raise ValueError(f"there is no kind {kind}: use {', '.join(FROM_TEXT)} or {FROM_STATES}")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {out.absolute().parent}: make it first")

    from outpace.cli.documents import documents, sources
    from outpace.console import progress
    from outpace.indexes import store
    from outpace.models.checkpoint import load_tokenizer
    from outpace.models.names import resolve

    began = perf_counter()
    words = load_tokenizer(resolve(tokenizer))
    vocabulary = words.get_vocab()
    paths = sources(source)
    if not paths:
        raise ValueError("there are no files in the folders of --from: give others")

    def encode(text: str) -> list[int]:
        return words(text, add_special_tokens=False, verbose=False)["input_ids"]

    with progress(sum(path.stat().st_size for path in paths)) as tell:
        texts = documents(paths, encode, 1 + max(vocabulary.values()), lambda size: tell("reading", size))

        def sorting(_: int) -> None:
            tell("sorting", 0)

        if kind == FROM_STATES:
            index = read(tokenizer, texts)
        else:
            index = make(kind, texts, out.absolute().parent, most_tokens, sorting)
        tell("writing", 0)
        store.save(index, out, store.fingerprint(vocabulary))
    if json:
        print_json(about(out) | {"seconds": perf_counter() - began})
    else:
        typer.echo(f"{out}: {sentence(index)}, {perf_counter() - began:.1f} s")


def make(kind: str, texts: Texts, scratch: Path, most_tokens: int, sorting: Callable[[int], None]) -> Index:
    """An index of this kind over these documents."""
    if kind == "suffix-array":
        from outpace.indexes.suffix_array.array import SuffixArray

        return SuffixArray.build(texts, tell=sorting, scratch=scratch)
    if kind == "suffix-automaton":
        from outpace.indexes.automata.static import StaticAutomaton

        return StaticAutomaton.build(texts)
    if kind == "trigrams":
        from outpace.indexes.tables.trigrams import TrigramTable

        return TrigramTable.build(texts)
    from outpace.indexes.suffix_tree.tree import SuffixTree

    tree = SuffixTree(most_tokens=most_tokens)
    for number, text in enumerate(texts):
        tree.extend(number, text)
        tree.finish(number)
    return tree


def read(model: str, texts: Texts) -> Index:
    """An index of this model's states while it reads these documents."""
    from outpace.drafters.lookup.hidden_state_search import indexed
    from outpace.models.hf.target import load
    from outpace.models.names import resolve

    return indexed(load(resolve(model))[0], texts)


def sentence(index: Index) -> str:
    """What there is, in a few words."""
    facts = [f"{value} {name.replace('_', ' ')}" for name, value in index.facts.items()]
    return ", ".join([index.kind, *facts, size(index.nbytes)])


def size(num_bytes: int) -> str:
    """In the largest unit that leaves a number above one."""
    unit, value = "bytes", float(num_bytes)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        unit, value = larger, value / 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


@app.command("show")
@plainly
def show(
    file: Annotated[Path, typer.Argument(help="What `outpace index build` wrote.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What an index holds, for which tokenizer, and when and with what it was made."""
    found = about(file)
    if json:
        print_json(found)
        return
    rows = [
        ("kind", found["kind"]),
        *((name.replace("_", " "), str(value)) for name, value in found["facts"].items()),
    ]
    rows += [("size", size(found["bytes"])), ("tokenizer", found["tokenizer"][:16] or "any")]
    rows += [("made at", found["made_at"]), ("made with", found["made_with"])]
    print_table((str(file), ""), rows)


def about(file: Path) -> dict[str, Any]:
    """A file's header, without where its arrays are."""
    from outpace.indexes import store

    found = store.header(file)
    arrays = {
        name: {"dtype": each["dtype"], "shape": each["shape"]} for name, each in found["arrays"].items()
    }
    named = ("kind", "tokenizer", "facts", "made_at", "made_with")
    return {
        "file": str(file),
        **{name: found[name] for name in named},
        "bytes": file.stat().st_size,
        "arrays": arrays,
    }
