"""Index files: a JSON header and arrays in the layout of safetensors. Loading a file executes no code.

Files are untrusted: this module checks the header, and each index class checks the values of its arrays,
because its compiled functions do not check array bounds. A damaged file raises a ValueError or gives an index
with other contents, but never crashes.
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
ALIGNMENT = 64  # the first array begins at a multiple of this number of bytes
MAX_HEADER_BYTES = 1 << 20
MAX_INTEGER = 1 << 62  # bound of integers in the header, so that the sum of two fits int64
Arrays = Mapping[str, NDArray[Any]]
# File paths of index kinds, as type annotations of recipe options (outpace/recipes/_option_kinds.py)
SuffixArrayFile = NewType("SuffixArrayFile", str)
SuffixAutomatonFile = NewType("SuffixAutomatonFile", str)
TrigramFile = NewType("TrigramFile", str)
HiddenStateFile = NewType("HiddenStateFile", str)
TokenCountsFile = NewType("TokenCountsFile", str)
SkipSetFile = NewType("SkipSetFile", str)


class Index(Protocol):
    """Interface of the index classes that can be saved to and loaded from a file."""

    kind: str  # name of the index type in file headers and on the command line

    @property
    def arrays(self) -> Arrays:
        """The arrays that are saved, by name."""
        ...

    @property
    def metadata(self) -> Mapping[str, int]:
        """Integers saved in the header: sizes for display, and parameters that the arrays do not contain."""
        ...

    @property
    def max_token(self) -> int:
        """The largest token id that a draft from this index can contain; -1 for an empty index."""
        ...

    @property
    def nbytes(self) -> int:
        """Size of the arrays in memory, in bytes."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Arrays, metadata: Mapping[str, int]) -> Self:
        """Build the index from saved arrays and metadata; ValueError if they are not a valid index."""
        ...


AnyIndex = TypeVar("AnyIndex", bound=Index)


@dataclass(frozen=True)
class ArrayLayout:
    """Dtype, shape and position of an array in a file."""

    dtype: str  # a key of DTYPES
    shape: tuple[int, ...]
    start: int  # offset of its first byte in the file

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Header:
    """The header of an index file."""

    kind: str
    tokenizer: str  # fingerprint of the tokenizer; "" if it was not recorded
    made_with: str  # versions of outpace, Python and numpy
    made_at: str  # time of creation, ISO 8601 in UTC
    metadata: Mapping[str, int]
    arrays: Mapping[str, ArrayLayout]


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """SHA-256 of `tokenizer.get_vocab()`, equal for tokenizers with the same token ids."""
    items = json.dumps(sorted(vocabulary.items()), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(items.encode()).hexdigest()


def save(index: Index, path: str | Path, tokenizer: str = "") -> None:
    """Write an index to a file; `tokenizer`: fingerprint of its tokenizer, "" if unknown.

    The file is replaced atomically at the end, so an interrupted call leaves the previous file intact.
    """
    dtype_names = {dtype: name for name, dtype in DTYPES.items()}
    # safetensors allows no gaps between arrays: larger dtypes come first, so that all arrays are aligned
    arrays = sorted(index.arrays.items(), key=lambda item: -item[1].itemsize)
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "kind": index.kind,
            "tokenizer": tokenizer,
            "metadata": json.dumps(dict(index.metadata)),  # safetensors allows only strings as metadata
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
    """Read the header of a file; ValueError if the file is missing, truncated, or not an index of this
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
    """The header as typed fields; `start`: offset of the first byte after it. Raises ValueError, KeyError,
    TypeError or AttributeError for a malformed header."""
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
    """Load the index in a file, None without a path; ValueError if it has token ids >= `vocab_size`."""
    if path is None:
        return None
    index = load(index_class, path, mapped=mapped)
    if index.max_token >= vocab_size:
        raise _other_tokenizer(path)
    return index


def check_tokenizer(path: str | Path, tokenizer: str) -> None:
    """Raise ValueError if the file was built for a tokenizer with another fingerprint than `tokenizer`."""
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
    """Load an index of this class; ValueError if the file is missing, damaged, of another kind, or built for
    another tokenizer than the one with the fingerprint `tokenizer` ("": any).

    mapped: open the arrays as copy-on-write memory maps instead of reading them; writes do not change the
    file.
    """
    header = read_header(path)
    if header.kind != index_class.kind:
        raise ValueError(f"{path} holds a {header.kind} index: build one with --kind {index_class.kind}")
    _check_tokenizer(path, header, tokenizer)
    try:
        arrays = {name: _read_array(path, layout, mapped) for name, layout in header.arrays.items()}
        return index_class.from_arrays(arrays, header.metadata)
    except KeyError as error:  # an array or a metadata entry is missing
        raise ValueError(f"{path}: {damaged()}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_array(path: str | Path, layout: ArrayLayout, mapped: bool) -> NDArray[Any]:
    dtype = DTYPES[layout.dtype]
    if mapped and layout.count:
        return np.asarray(np.memmap(path, dtype, mode="c", offset=layout.start, shape=layout.shape))
    return np.fromfile(path, dtype, layout.count, offset=layout.start).reshape(layout.shape)


def header_dict(header: Header) -> dict[str, Any]:
    """The header as JSON values for `outpace index show`; of each array dtype and shape, without offset."""
    arrays = {name: {"dtype": each.dtype, "shape": list(each.shape)} for name, each in header.arrays.items()}
    return asdict(header) | {"arrays": arrays}


def typed(arrays: Arrays, dtype: Any = np.int32, **shapes: tuple[int | None, ...]) -> list[NDArray[Any]]:
    """The arrays with these names, in order; ValueError if a dtype or shape differs (None: any length)."""
    for name, shape in shapes.items():
        actual = arrays[name].shape
        if arrays[name].dtype != dtype or len(actual) != len(shape):
            raise damaged()
        if any(wanted not in (None, length) for wanted, length in zip(shape, actual, strict=True)):
            raise damaged()
    return [arrays[name] for name in shapes]


def in_range(values: NDArray[Any], low: float, high: float) -> bool:
    """Whether low <= value < high for all values; False if any is NaN."""
    return not values.size or bool(values.min() >= low and values.max() < high)


def require(*conditions: bool | np.bool) -> None:
    """Raise the ValueError for a damaged file unless all conditions are true."""
    if not all(conditions):
        raise damaged()


def damaged() -> ValueError:
    """The ValueError for a file whose arrays are not a valid index."""
    return ValueError("the index is damaged: build it again with `outpace index build`")
