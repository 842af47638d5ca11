"""`outpace index`: build index files for retrieval-based drafting, and show the header of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outpace.cli.failures import Debug, report_failures
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
FROM_TEXT = ("suffix-array", "suffix-automaton", "trigrams", "token-counts")
FROM_STATES = "hidden-states"  # built from the hidden states of a model over the texts
FROM_DRAFTS = "skip-sets"  # built from hidden states and drafts of a model; each source is a domain
Documents = Iterator[list[int]]


@app.command("build")
@report_failures
def build(
    source: Annotated[
        list[Path], typer.Option("--from", help="A text, a folder of texts, or .jsonl; may be repeated.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    kind: Annotated[
        str, typer.Option(help=f"{', '.join((*FROM_TEXT, FROM_STATES))} or {FROM_DRAFTS}.")
    ] = "suffix-array",
    tokenizer: Annotated[str, typer.Option(help="The model that will use the index.")] = "zoo:target",
    trials: Annotated[
        int, typer.Option(min=1, help="For skip-sets: sets that are tried for each --from, a domain.")
    ] = 200,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Build an index file from texts or earlier results: JSON lines with "text" or token ids as "tokens".
    Lines for skip-sets may have a "prompt" or "messages" instead."""
    if kind not in (*FROM_TEXT, FROM_STATES, FROM_DRAFTS):
        raise ValueError(
            f"there is no kind {kind}: use {', '.join((*FROM_TEXT, FROM_STATES))} or {FROM_DRAFTS}"
        )
    folder = out.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: make it first")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: give --out the name of a file")

    from outpace.api.prompts import encode as encode_as_request
    from outpace.cli.documents import documents, not_empty, sources
    from outpace.console import progress
    from outpace.indexes import store
    from outpace.models.checkpoint import load_tokenizer
    from outpace.models.names import resolve

    began = perf_counter()
    loaded_tokenizer = load_tokenizer(resolve(tokenizer))
    vocabulary = loaded_tokenizer.get_vocab()
    paths = sources(source)

    def encode(text: str) -> list[int]:
        return loaded_tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def encode_prompt(prompt: Any) -> list[int]:
        if (
            isinstance(prompt, list)
            and isinstance(last := prompt[-1], dict)
            and last.get("role") == "assistant"
        ):
            prompt = prompt[:-1]  # an answer, as in the data of `outpace train`
        return encode_as_request(loaded_tokenizer, prompt, size)

    size = 1 + max(vocabulary.values())
    with progress(sum(path.stat().st_size for path in paths)) as report:

        def on_read(num_bytes: int) -> None:
            report("reading", num_bytes)

        def on_sorted(_: int) -> None:
            report("sorting", 0)

        texts = not_empty(documents(paths, encode, size, on_read))
        if kind == FROM_DRAFTS:
            each = [
                not_empty(documents(sources([path]), encode, size, on_read, encode_prompt)) for path in source
            ]
            index = index_of_skip_sets(tokenizer, each, trials, lambda: report("searching", 0))
        elif kind == FROM_STATES:
            index = index_of_states(tokenizer, texts)
        elif kind == "token-counts":
            from outpace.indexes.token_counts import TokenCounts

            index = TokenCounts.build(texts, special_tokens(loaded_tokenizer))
        else:
            index = index_of_texts(kind, texts, folder, on_sorted)
        report("writing", 0)
        store.save(index, out, store.fingerprint(vocabulary))
    if json:
        print_json(header(out) | {"seconds": perf_counter() - began})
    else:
        typer.echo(f"{out}: {summary(index)}, {perf_counter() - began:.1f} s")


def index_of_texts(
    kind: str, texts: Documents, temporary_folder: Path, on_sorted: Callable[[int], None]
) -> Index:
    """Build an index of one of the kinds FROM_TEXT, but token-counts, from documents of token ids."""
    if kind == "suffix-array":
        from outpace.indexes.suffix_array.array import SuffixArray

        return SuffixArray.build(texts, on_progress=on_sorted, temporary_folder=temporary_folder)
    if kind == "suffix-automaton":
        from outpace.indexes.automata.static import StaticAutomaton

        return StaticAutomaton.build(texts)
    from outpace.recipes.training_free.aded.trigram_table import TrigramTable

    return TrigramTable.build(texts)


def special_tokens(tokenizer: Any) -> list[int]:
    """The end-of-text token, and the added tokens that occur in the chat template: ends of turns, tool calls.
    A draft with a reduced vocabulary keeps them, however rare they are in the texts."""
    template = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, dict):  # several templates by name
        template = " ".join(template.values())
    found = {token for token, added in tokenizer.added_tokens_decoder.items() if str(added) in template}
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    return sorted(found)


def index_of_states(model: str, texts: Documents) -> Index:
    """Build an index of the hidden states that a model computes for the texts."""
    from outpace.models.hf.target import load
    from outpace.models.names import resolve
    from outpace.recipes.training_free.dresd.recipe import indexed

    return indexed(load(resolve(model))[0], texts)


def index_of_skip_sets(
    model: str, domains: list[Documents], trials: int, on_trial: Callable[[], None]
) -> Index:
    """Build the anchors of domains, each given by the prompts of one source, with a skip set for each."""
    from outpace.models.hf.target import load
    from outpace.models.names import resolve
    from outpace.training.skip_sets import anchored

    return anchored(load(resolve(model))[0], domains, trials=trials, on_trial=on_trial)


def summary(index: Index) -> str:
    """One line: kind of the index, its metadata and its size in memory."""
    sizes = [f"{value} {name.replace('_', ' ')}" for name, value in index.metadata.items()]
    return ", ".join([index.kind, *sizes, binary_size(index.nbytes)])


def binary_size(num_bytes: int) -> str:
    """A number of bytes as text, in bytes, KiB, MiB, GiB or TiB."""
    unit, value = "bytes", float(num_bytes)
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        unit, value = larger, value / 1024
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"


@app.command("show")
@report_failures
def show(
    file: Annotated[Path, typer.Argument(help="A file written by `outpace index build`.")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the header of an index file: kind, sizes, tokenizer fingerprint, build time and versions."""
    about = header(file)
    if json:
        print_json(about)
        return
    rows = [
        ("kind", about["kind"]),
        *((name.replace("_", " "), str(value)) for name, value in about["metadata"].items()),
        ("size", binary_size(about["bytes"])),
        ("tokenizer", about["tokenizer"][:16] or "any"),
        ("made at", about["made_at"]),
        ("made with", about["made_with"]),
    ]
    print_table((str(file), ""), rows)


def header(file: Path) -> dict[str, Any]:
    """The header of an index file as JSON values, with its path and size in bytes."""
    from outpace.indexes import store

    return {"file": str(file), **store.header_dict(store.read_header(file)), "bytes": file.stat().st_size}
