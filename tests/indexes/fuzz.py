"""Open damaged index files and query them: `python tests/indexes/fuzz.py FOLDER COUNT SEED`.

Run as a process of its own, since a fault in compiled code would end the test run. The folder holds one valid
file per kind, named by it. Each of COUNT files is damaged by random bytes, by hostile values in an array, or
in the header; it must give a ValueError of one line or an index whose queries return. Prints how many files
were refused and opened.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from outpace.indexes import store
from outpace.indexes.automata.static import Pointer, StaticAutomaton
from outpace.indexes.candidates import CandidateTree
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.indexes.token_counts import TokenCounts
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors
from outpace.recipes.training_free.aded.trigram_search import search
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.recipes.training_free.dresd.hidden_states import HiddenStateIndex

HOSTILE_INTEGERS = (
    -(1 << 63),
    -(1 << 31),
    -2,
    -1,
    0,
    1,
    7,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
)
HOSTILE_FLOATS = (np.nan, np.inf, -np.inf, -1.0, 3e38, -3e38, 1e-40, 0.0)
HOSTILE_JSON = (
    None,
    -1,
    0,
    1,
    1 << 31,
    1 << 40,
    1 << 61,
    1 << 70,
    1e308,
    1.5,
    "x",
    "\x1b[31m",
    [],
    {},
    [-1],
    [[0]],
    True,
)


def check(tree: CandidateTree, max_token: int) -> None:
    """A candidate tree has tokens of the index, parents before children, and weights that are numbers."""
    assert len(tree.tokens) == len(tree.parents) == len(tree.weights)
    assert all(0 <= token <= max_token for token in tree.tokens)
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
    assert not any(np.isnan(tree.weights))


def query(index: Any, contexts: list[list[int]]) -> None:
    """All queries of an index, and after them what a running request does to it."""
    top = index.max_token
    for context in contexts:
        match index:
            case SuffixArray():
                check(index.continuation_tree(context, min_ngram=1), top)
            case StaticAutomaton():
                pointer = index.move(Pointer(), context)
                check(index.continuation_tree(pointer), top)
                assert all(0 <= token <= top for token in index.continuation(pointer, 9))
                assert all(0 <= token <= top for token, _ in index.successors(pointer))
                assert all(0 <= prob <= 1 for prob in index.next_probs(context, context))
            case TrigramTable():
                own = TrigramTable(index.tokens.shape[1])
                own.adapt(context)
                check(search(index, own, context, iterations=30), max(top, *context))
                index.adapt(context)
                index.add(own)
            case HiddenStateIndex():
                assert (index.search(np.ones(len(index.mean), np.float32), 5)[0] <= top).all()
            case SkipSetAnchors():
                domain = index.domain(np.ones(index.centers.shape[1], np.float32))
                index.skip_set(domain or 0).check(index.num_layers)
            case TokenCounts():
                kept = index.kept(index.special.size + 4, 1 << 10)
                assert len(set(kept)) == len(kept) and all(0 <= token <= max(top, 1 << 10) for token in kept)
            case _:
                raise TypeError(type(index).__name__)


def damage(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes of a file with random damage."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])

    def pick(values: Any) -> Any:
        return values[rng.integers(len(values))]

    match rng.integers(4):
        case 0:  # bytes anywhere
            changed = bytearray(data)
            for _ in range(rng.integers(1, 9)):
                changed[rng.integers(len(changed))] = rng.integers(256)
            return bytes(changed)
        case 1:  # a number of the metadata, or a field of the header
            about = header["__metadata__"]
            metadata = json.loads(about["metadata"])
            if rng.random() < 0.7 and metadata:
                metadata[pick(list(metadata))] = pick(HOSTILE_JSON)
                about["metadata"] = json.dumps(metadata)
            else:
                about[pick(list(about))] = pick(HOSTILE_JSON)
        case 2:  # where an array is and what it is
            entry = header[pick([name for name in header if name != "__metadata__"])]
            field = pick(list(entry))
            if isinstance(entry[field], list) and entry[field] and rng.random() < 0.5:
                entry[field][rng.integers(len(entry[field]))] = pick(HOSTILE_JSON)
            else:
                entry[field] = pick(HOSTILE_JSON)
        case _:  # values of an array
            entry = header[pick([name for name in header if name != "__metadata__"])]
            start, end = entry["data_offsets"]
            dtype = store.DTYPES[entry["dtype"]]
            array = np.frombuffer(body, dtype, (end - start) // dtype.itemsize, start)
            values = HOSTILE_FLOATS if array.dtype.kind == "f" else HOSTILE_INTEGERS
            for _ in range(rng.integers(1, 6)):
                if array.size:
                    value = pick(values)
                    if array.dtype.kind == "i":
                        limits = np.iinfo(array.dtype)
                        value = min(max(value, limits.min), limits.max)
                    if rng.random() < 0.1:
                        array[:] = value
                    else:
                        array[rng.integers(array.size)] = value
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(body)


CLASSES: tuple[Callable[..., Any], ...] = (
    SuffixArray,
    StaticAutomaton,
    TrigramTable,
    HiddenStateIndex,
    TokenCounts,
    SkipSetAnchors,
)


def main(folder: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = {index_class.kind: index_class for index_class in CLASSES}
    originals = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.index"))}
    contexts = [rng.integers(0, 6, 8).tolist() for _ in range(4)]
    outcomes = Counter[str]()
    for number in range(count):
        kind = list(originals)[number % len(originals)]
        path = folder / "damaged"
        path.write_bytes(damage(originals[kind], rng))
        print(number, kind, flush=True)
        try:
            index = store.load(kinds[kind], path, mapped=bool(number % 2))
        except ValueError as error:
            assert len(str(error).splitlines()) == 1 and len(str(error)) < 400, str(error)
            outcomes["refused"] += 1
            continue
        query(index, contexts)
        outcomes["opened"] += 1
    print(dict(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
