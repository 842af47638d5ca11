"""Index files: arrays behind a JSON header, in the layout of safetensors. Nothing in a file is executed.

A file is untrusted: the header is checked here, and each class of index checks the values of its arrays
before its compiled functions, which do not check bounds, read them. A damaged file gives a ValueError of one
sentence, or an index with other contents, never a crash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from platform import python_version
from typing import Any, NewType, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from outpace import __version__

FORMAT = "outpace-index/2"
DTYPES = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
ALIGNMENT = 64  # bytes; the arrays begin at a multiple
MAX_HEADER_BYTES = 1 << 20
MAX_INTEGER = 1 << 62  # of the metadata: a sum of two still fits int64
Arrays = Mapping[str, NDArray[Any]]
# Paths of index files by kind: annotations of recipe options, see outpace/recipes/_option_kinds.py
SuffixArrayFile = NewType("SuffixArrayFile", str)
SuffixAutomatonFile = NewType("SuffixAutomatonFile", str)
TrigramFile = NewType("TrigramFile", str)
HiddenStateFile = NewType("HiddenStateFile", str)


class Index(Protocol):
    """What can be saved to a file and loaded from it."""

    kind: str  # the name of the class in files and on the command line

    @property
    def arrays(self) -> Arrays:
        """What a file holds."""
        ...

    @property
    def metadata(self) -> Mapping[str, int]:
        """Integers saved with the arrays: sizes to show, and parameters that the arrays do not give."""
        ...

    @property
    def max_token(self) -> int:
        """The largest token id that a draft from this index can hold; -1 for an empty index."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        """The index that was saved; ValueError if the arrays do not form a valid index."""
        ...


AnyIndex = TypeVar("AnyIndex", bound=Index)


@dataclass(frozen=True)
class ArrayLayout:
    """Where an array of a file is and how it is read."""

    dtype: str  # a key of DTYPES
    shape: tuple[int, ...]
    start: int  # byte of the file

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Header:
    """What a file states about its index."""

    kind: str
    tokenizer: str  # the fingerprint of the tokenizer, "" if it was not known
    made_with: str  # versions
    made_at: str  # ISO time in UTC
    metadata: Mapping[str, int]
    arrays: Mapping[str, ArrayLayout]


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """A hash of `tokenizer.get_vocab()`: equal for tokenizers with the same token ids."""
    items = json.dumps(sorted(vocabulary.items()), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(items.encode()).hexdigest()


def save(index: Index, path: str | Path, tokenizer: str = "") -> None:
    """Write an index whose tokens belong to the tokenizer with this fingerprint ("": not known).

    The file is replaced at the end: an interrupted call leaves the old one.
    """
    dtype_names = {dtype: name for name, dtype in DTYPES.items()}
    # safetensors allows no gaps between arrays: the wider types come first, so that all are aligned
    arrays = sorted(index.arrays.items(), key=lambda item: -item[1].itemsize)
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "kind": index.kind,
            "tokenizer": tokenizer,
            "metadata": json.dumps(dict(index.metadata)),  # safetensors allows strings only
            "made_with": f"outpace {__version__}, Python {python_version()}, numpy {np.__version__}",
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    }
    end = 0
    for name, array in arrays:
        start, end = end, end + array.nbytes
        entries[name] = {
            "dtype": dtype_names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in arrays:
            array.tofile(file)
    os.replace(unfinished, path)


def read_header(path: str | Path) -> Header:
    """The header of a file; ValueError if there is no such file, or if it is not a complete index of this
    format."""
    try:
        size = Path(path).stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= min(MAX_HEADER_BYTES, size - 8) else b""
    except FileNotFoundError:
        raise ValueError(f"there is no index file {path}: build one with `outpace index build`") from None
    except OSError as error:
        raise ValueError(f"the index file {path} cannot be read: {error.strerror}") from error
    try:
        entries = json.loads(text)
        about = entries.pop("__metadata__")
        found_format = about["format"]
        if found_format == FORMAT:
            header = _parsed(entries, about, start=8 + length)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not an index, or is cut off: build it with `outpace index build`"
        ) from error
    if found_format != FORMAT:
        raise ValueError(
            f"{path} has the format {found_format!r:.50} and this version reads {FORMAT}: build it again"
        )
    expected = max((array.start + array.nbytes for array in header.arrays.values()), default=8 + length)
    if expected != size:
        raise ValueError(f"{path} has {size} bytes instead of {expected}, so it is cut off: copy it again")
    return header


def _parsed(entries: Any, about: Any, start: int) -> Header:
    """The header as typed fields; `start` is the first byte after it. Any of several exceptions where it is
    wrong."""
    metadata = json.loads(about["metadata"])
    if not all(_is_size(value) for value in metadata.values()):
        raise TypeError("metadata are integers of at most 62 bits")
    arrays: dict[str, ArrayLayout] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        shape, offsets = tuple(entry["shape"]), tuple(entry["data_offsets"])
        if len(shape) > 4 or not all(map(_is_size, (*shape, *offsets))):
            raise TypeError("shapes and offsets are integers of at most 62 bits")
        array = ArrayLayout(entry["dtype"], shape, start + end)
        if offsets != (end, end := end + array.nbytes):
            raise ValueError("the arrays overlap or have gaps between them")
        arrays[name] = array
    texts = {name: about[name] for name in ("kind", "tokenizer", "made_with", "made_at")}
    if not all(isinstance(text, str) and text.isprintable() for text in texts.values()):
        raise TypeError("the fields of the header are printable strings")
    return Header(**texts, metadata=metadata, arrays=arrays)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_INTEGER


def open_index(
    index_class: type[AnyIndex], path: str | None, vocab_size: int, *, mapped: bool = True
) -> AnyIndex | None:
    """The index in a file, None without a path; ValueError if it holds tokens beyond `vocab_size`."""
    if path is None:
        return None
    index = load(index_class, path, mapped=mapped)
    if index.max_token >= vocab_size:
        raise _other_tokenizer(path)
    return index


def check_tokenizer(path: str | Path, tokenizer: str) -> None:
    """Raise ValueError if the file was made for a tokenizer with another fingerprint."""
    _check_tokenizer(path, read_header(path), tokenizer)


def _check_tokenizer(path: str | Path, header: Header, tokenizer: str) -> None:
    if tokenizer and header.tokenizer not in ("", tokenizer):
        raise _other_tokenizer(path)


def _other_tokenizer(path: str | Path) -> ValueError:
    return ValueError(
        f"{path} was made for another tokenizer: build it again with the --tokenizer of your model"
    )


def load(
    index_class: type[AnyIndex], path: str | Path, tokenizer: str = "", *, mapped: bool = False
) -> AnyIndex:
    """Read an index of this class; ValueError if the file is missing, damaged, of another kind, or for a
    tokenizer with another fingerprint than `tokenizer` ("": any).

    `mapped`: arrays stay on disk and are read when needed (memory map). Writing to them does not change the
    file.
    """
    header = read_header(path)
    if header.kind != index_class.kind:
        raise ValueError(f"{path} holds a {header.kind} index: build one with --kind {index_class.kind}")
    _check_tokenizer(path, header, tokenizer)
    try:
        arrays = {name: _read_array(path, layout, mapped) for name, layout in header.arrays.items()}
        return index_class.from_arrays(arrays, header.metadata)
    except KeyError as error:  # an array or a number of the metadata is missing
        raise ValueError(f"{path}: {damaged()}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_array(path: str | Path, layout: ArrayLayout, mapped: bool) -> NDArray[Any]:
    dtype = DTYPES[layout.dtype]
    if mapped and layout.count:
        return np.asarray(np.memmap(path, dtype, mode="c", offset=layout.start, shape=layout.shape))
    return np.fromfile(path, dtype, layout.count, offset=layout.start).reshape(layout.shape)


def header_dict(header: Header) -> dict[str, Any]:
    """The header for `outpace index show --json`: all fields, of the arrays their types and shapes."""
    arrays = {name: {"dtype": each.dtype, "shape": list(each.shape)} for name, each in header.arrays.items()}
    return asdict(header) | {"arrays": arrays}


def typed(arrays: Arrays, dtype: Any = np.int32, **shapes: tuple[int | None, ...]) -> list[NDArray[Any]]:
    """The arrays of these names in order; ValueError if one has another dtype or shape (None: any length)."""
    for name, shape in shapes.items():
        actual = arrays[name].shape
        if arrays[name].dtype != dtype or len(actual) != len(shape):
            raise damaged()
        if any(wanted not in (None, length) for wanted, length in zip(shape, actual, strict=True)):
            raise damaged()
    return [arrays[name] for name in shapes]


def in_range(values: NDArray[Any], low: float, high: float) -> bool:
    """Whether low <= value < high for all values; NaN is in no range."""
    return not values.size or bool(values.min() >= low and values.max() < high)


def require(*conditions: bool | np.bool) -> None:
    """Raise the error of a damaged file unless all conditions hold."""
    if not all(conditions):
        raise damaged()


def damaged() -> ValueError:
    """The error for arrays that contradict each other."""
    return ValueError("the index is damaged: build it again with `outpace index build`")
