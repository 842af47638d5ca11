"""Index files: a loaded index equals the saved one, and wrong or damaged files give one sentence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from outpace.indexes import store
from outpace.indexes.automata.static import Pointer, StaticAutomaton
from outpace.indexes.suffix_array.array import SuffixArray
from outpace.indexes.token_counts import TokenCounts
from outpace.models.skip_set import SkipSet
from outpace.recipes.self_speculation.knn_ssd.skip_set_anchors import SkipSetAnchors
from outpace.recipes.training_free.aded.trigram_table import TrigramTable
from outpace.recipes.training_free.dresd.hidden_states import HiddenStateIndex

MINE, OTHER = store.fingerprint({"a": 0, "b": 1}), store.fingerprint({"a": 1, "b": 0})
rng = np.random.default_rng(0)
DOCUMENTS = [rng.integers(0, 6, 40).tolist() for _ in range(5)]
CONTEXTS = [rng.integers(0, 6, 6).tolist() for _ in range(50)]


def trigrams() -> TrigramTable:
    table = TrigramTable.build(DOCUMENTS, 4, 10)
    table.adapt([7, 8, 9, 7, 8])
    return table


def dense() -> HiddenStateIndex:
    return HiddenStateIndex.build(rng.normal(size=(60, 6)), rng.integers(0, 6, (60, 4)), dims=4)


# kind of index file -> (builds an index of it, makes every kind of query on an index with a text)
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, list[int]], Any]]] = {
    "suffix-array": (
        lambda: SuffixArray.build(DOCUMENTS, 100),
        lambda index, text: index.continuation_tree(text),
    ),
    "suffix-automaton": (
        lambda: StaticAutomaton.build(DOCUMENTS),
        lambda index, text: (
            index.continuation_tree(index.move(Pointer(), text)),
            index.move(Pointer(), text),
        ),
    ),
    "trigrams": (trigrams, lambda index, text: index.successors(*text[:2])),
    "token-counts": (
        lambda: TokenCounts.build(DOCUMENTS, special=[9]),
        lambda index, text: index.kept(1 + text[0], 10),
    ),
    "skip-sets": (
        lambda: SkipSetAnchors.build([rng.normal(size=(5, 6))] * 2, [SkipSet.of_layers([1])] * 2, 4),
        lambda index, text: (index.domain(np.arange(6) - text[0]), index.skip_set(1)),
    ),
    "hidden-states": (dense, lambda index, text: [each.tolist() for each in index.search(np.array(text), 5)]),
}


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Callable[[Any, list[int]], Any], Path]:
    make, query = KINDS[request.param]
    index = make()
    assert index.kind == request.param
    store.save(index, tmp_path / "some.index", MINE)
    return index, query, tmp_path / "some.index"


@pytest.mark.parametrize("mapped", [False, True])
def test_what_is_loaded_answers_as_what_was_saved(made: Any, loops: str, mapped: bool) -> None:
    index, query, path = made
    loaded = store.load(type(index), path, MINE, mapped=mapped)
    for context in CONTEXTS:
        assert query(loaded, context) == query(index, context)
    assert loaded.metadata == index.metadata and loaded.max_token == index.max_token
    arrays = store.read_header(path).arrays
    for name, array in index.arrays.items():
        assert arrays[name].shape == array.shape and np.array_equal(loaded.arrays[name], array)
    start = min(array.start for array in arrays.values())
    assert path.stat().st_size - start == sum(array.nbytes for array in index.arrays.values())


def test_a_file_can_be_read_as_safetensors(made: Any) -> None:
    index, _, path = made
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["kind"] == index.kind and file.metadata()["tokenizer"] == MINE
        for name, array in index.arrays.items():
            assert np.array_equal(file.get_tensor(name), array)


def test_a_file_describes_its_content(made: Any) -> None:
    index, _, path = made
    header = store.read_header(path)
    assert header.kind == index.kind and header.metadata == dict(index.metadata)
    assert re.match(r"outpace \d.*numpy", header.made_with) and re.match(r"\d{4}-\d\d-\d\dT", header.made_at)


def test_a_file_cut_off_anywhere_is_refused(made: Any) -> None:
    index, _, path = made
    whole = path.read_bytes()
    for size in (0, 5, 8, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="cut off.*(build|copy) it"):
            store.load(type(index), path)
    path.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match="copy it again"):
        store.load(type(index), path)


def test_a_file_for_another_tokenizer_or_of_another_kind_is_refused(made: Any) -> None:
    index, _, path = made
    with pytest.raises(
        ValueError, match="another tokenizer: build it again with the --tokenizer of your model"
    ):
        store.load(type(index), path, OTHER)
    other = TokenCounts if index.kind != "token-counts" else TrigramTable
    with pytest.raises(ValueError, match=f"holds a {index.kind} index: build one with --kind {other.kind}"):
        store.load(other, path, MINE)
    store.load(type(index), path)  # without a fingerprint the tokenizer is not checked


def test_something_else_is_no_index(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    for data in (b"PK\x03\x04" + b"x" * 100, b"", (2).to_bytes(8, "little") + b"{}", b"\xff" * 64):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is not an index"):
            store.read_header(path)
    with pytest.raises(ValueError, match=r"^there is no index file .*none.index: build one with"):
        store.read_header(tmp_path / "none.index")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        store.read_header(tmp_path)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    listed = json.loads(data[8 : 8 + length])
    change(listed)
    text = json.dumps(listed).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def test_another_version_of_the_format_is_refused(made: Any) -> None:
    index, _, path = made
    rewritten(path, lambda listed: listed["__metadata__"].update(format="outpace-index/99"))
    with pytest.raises(ValueError, match="format 'outpace-index/99' and this version reads outpace-index/2"):
        store.load(type(index), path)


def test_a_header_that_does_not_fit_the_arrays_is_refused(made: Any) -> None:
    index, _, path = made
    whole, name = path.read_bytes(), next(iter(index.arrays))
    changes: list[Callable[[dict[str, Any]], None]] = [
        lambda listed: listed.pop(name),
        lambda listed: listed[name].update(dtype="object"),
        lambda listed: listed[name].update(shape=[1 << 40]),
        lambda listed: listed[name].update(shape=[-1, -1]),
        lambda listed: listed[name].update(data_offsets=[-8, 0]),
        lambda listed: (
            listed["__metadata__"].update(metadata="{}") if index.kind in NEEDS_METADATA else listed.pop(name)
        ),
    ]
    for change in changes:
        path.write_bytes(whole)
        rewritten(path, change)
        with pytest.raises(ValueError, match="build it|copy it"):
            store.load(type(index), path)


NEEDS_METADATA = ("suffix-array", "suffix-automaton", "trigrams")


def test_numbers_that_would_lead_out_of_the_arrays_are_refused_or_harmless(made: Any) -> None:
    index, query, path = made
    sound, dice = {name: array.copy() for name, array in index.arrays.items()}, np.random.default_rng(1)
    refused = 0
    for name, array in sound.items():
        if array.dtype.kind == "f" or not array.size:
            continue
        for value in (np.iinfo(array.dtype).max, np.iinfo(array.dtype).min, 1 << 20):
            for _ in range(6):
                wrong = array.copy()
                wrong.flat[dice.integers(array.size)] = value
                store.save(Altered(index, {**sound, name: wrong}), path)
                try:
                    loaded = store.load(type(index), path)
                except ValueError as error:
                    refused += "build it again" in str(error)
                    continue
                for context in CONTEXTS[:5]:
                    try:
                        query(loaded, context)  # a wrong answer, not a crash
                    except (IndexError, ValueError, OverflowError):
                        pass
    assert refused or index.kind in ("suffix-array", "hidden-states")


class Altered:
    """An index with other arrays."""

    def __init__(self, index: Any, arrays: Mapping[str, np.ndarray]) -> None:
        self.kind, self.metadata, self.nbytes, self.arrays = index.kind, index.metadata, index.nbytes, arrays
        self.max_token = index.max_token

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, int]) -> Altered:
        raise NotImplementedError


def test_a_run_that_is_stopped_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "some.index"
    store.save(dense(), path, MINE)
    before = path.read_bytes()
    broken = Altered(dense(), {"keys": np.zeros(3, np.float16)})
    with pytest.raises(KeyError):
        store.save(broken, path)
    assert path.read_bytes() == before


class Unwritable(np.ndarray[Any, Any]):
    """An array for which there is no space on the disk."""

    def tofile(self, *_: Any, **__: Any) -> None:
        raise OSError("no space left")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "some.index"
    store.save(dense(), path, MINE)
    before = path.read_bytes()
    with pytest.raises(OSError, match="no space"):
        store.save(Altered(dense(), {"keys": np.zeros(3, np.float32).view(Unwritable)}), path)
    assert path.read_bytes() == before


def test_writing_to_a_mapped_index_leaves_its_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.index"
    store.save(trigrams(), path, MINE)
    before = path.read_bytes()
    loaded = store.load(TrigramTable, path, mapped=True)
    for context in CONTEXTS:
        loaded.adapt(context)
    assert loaded.successors(0, 1) != trigrams().successors(0, 1)
    assert path.read_bytes() == before


def test_threads_read_one_index_at_once(made: Any) -> None:
    index, query, path = made
    loaded = store.load(type(index), path, MINE, mapped=True)
    expected = [query(index, context) for context in CONTEXTS]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: [query(loaded, context) for context in CONTEXTS], range(24)))
    assert all(answer == expected for answer in answers)


def test_tokenizers_have_different_fingerprints() -> None:
    assert MINE == store.fingerprint({"b": 1, "a": 0}) != OTHER
    assert len(MINE) == 64


HOSTILE = (-1, 1 << 31, 1 << 61, 1 << 70, 1e308, 1.5, "x", None, [], {}, True)


def test_hostile_numbers_in_a_header_give_one_sentence_and_take_no_memory(made: Any) -> None:
    index, _, path = made
    whole = path.read_bytes()
    nested = "[" * 100_000 + "]" * 100_000

    def opened(change: Callable[[dict[str, Any]], None]) -> str:
        path.write_bytes(whole)
        rewritten(path, change)
        tracemalloc.start()
        try:
            store.load(type(index), path)
        except ValueError as error:
            return str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 1 << 26
        return ""

    for name in index.metadata:
        for value in HOSTILE:
            changed = json.dumps({**index.metadata, name: value})
            sentence = opened(lambda listed, text=changed: listed["__metadata__"].update(metadata=text))
            assert len(sentence.splitlines()) <= 1 and (sentence or value in (1 << 31, 1 << 61))
    for array in index.arrays:
        for field in ("dtype", "shape", "data_offsets"):
            for value in (*HOSTILE, *([each] for each in HOSTILE)):
                sentence = opened(lambda listed, name=array, f=field, v=value: listed[name].update({f: v}))
                assert len(sentence.splitlines()) == 1
    assert opened(lambda listed: listed["__metadata__"].update(metadata=nested)).endswith("index build`")


@pytest.mark.slow
def test_no_damaged_file_ends_the_process(tmp_path: Path) -> None:
    for kind, (make, _) in KINDS.items():
        store.save(make(), tmp_path / f"{kind}.index", MINE)
    program = Path(__file__).parent / "fuzz.py"
    result = subprocess.run(
        [sys.executable, str(program), str(tmp_path), "150", "0"], capture_output=True, text=True
    )
    assert result.returncode == 0, (result.returncode, result.stdout[-200:], result.stderr[-2000:])
    assert re.search(r"'refused': \d\d.*'opened': \d\d|'opened': \d\d.*'refused': \d\d", result.stdout)
