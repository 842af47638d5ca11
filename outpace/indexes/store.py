"""Indexes on disk: raw arrays behind a JSON header, in the layout of safetensors. Nothing in a file is executed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from platform import python_version
from typing import Any, NewType, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from outpace import __version__

FORMAT = "outpace-index/1"
TYPES = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
ALIGNED = 64  # bytes; the arrays begin at a multiple
MOST_HEADER = 1 << 24
# paths of index files, by what is in them: annotations of options of recipes, see outpace/recipes/_option_kinds.py
SuffixArrayFile = NewType("SuffixArrayFile", str)
SuffixAutomatonFile = NewType("SuffixAutomatonFile", str)
TrigramFile = NewType("TrigramFile", str)
HiddenStateFile = NewType("HiddenStateFile", str)


class Index(Protocol):
    """What can be saved."""

    kind: str  # of the class

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]: ...
    @property
    def facts(
        self,
    ) -> Mapping[str, int]: ...  # what the arrays do not say; tokens and documents, if it has any
    @property
    def nbytes(self) -> int: ...
    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, int]) -> Self: ...


Kind = TypeVar("Kind", bound=Index)


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """What tells tokenizers apart: a hash of their tokens and numbers (`tokenizer.get_vocab()`)."""
    listed = json.dumps(sorted(vocabulary.items()), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(listed.encode()).hexdigest()


def save(index: Index, path: str | Path, tokenizer: str = "") -> None:
    """Write an index for the tokenizer with this fingerprint; "" if that is not known."""
    about = {
        "format": FORMAT,
        "kind": index.kind,
        "tokenizer": tokenizer,
        "facts": json.dumps(dict(index.facts)),
        "made_with": f"outpace {__version__}, Python {python_version()}, numpy {np.__version__}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    names = {dtype: name for name, dtype in TYPES.items()}
    listed: dict[str, Any] = {"__metadata__": about}
    end = 0
    # safetensors has no gaps: the wider numbers come first, so that all are aligned
    arrays = sorted(index.arrays.items(), key=lambda each: -each[1].itemsize)
    for name, array in arrays:
        start, end = end, end + array.nbytes
        listed[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(listed).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")  # a run that is stopped leaves the old file as it was
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in arrays:
            array.tofile(file)
    os.replace(unfinished, path)


def header(path: str | Path) -> dict[str, Any]:
    """What a file says of itself: kind, tokenizer, facts, when and with what it was made, and its arrays."""
    size = Path(path).stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= min(MOST_HEADER, size - 8) else b""
    try:
        listed = json.loads(text)
        about = listed.pop("__metadata__")
        found = {**about, "facts": {name: int(value) for name, value in json.loads(about["facts"]).items()}}
        found["arrays"] = listed
        end = max(each["data_offsets"][1] for each in listed.values())
        known = found["format"], found["kind"], found["tokenizer"], found["made_with"], found["made_at"]
        if not all(isinstance(each, str) for each in known):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no index, or cut off: build it with `outpace index build`") from error
    if found["format"] != FORMAT:
        raise ValueError(
            f"{path} has the format {found['format']} and this version reads {FORMAT}: build it again"
        )
    if 8 + length + end != size:
        raise ValueError(
            f"{path} has {size} bytes instead of {8 + length + end}, so it is cut off: copy it again"
        )
    found["start"] = 8 + length
    return found


def opened(
    kind: type[Kind],
    path: str | None,
    vocab: int,
    tokens: Callable[[Kind], Sequence[NDArray[Any]]],  # the arrays of an index that hold tokens
    *,
    mapped: bool = True,
) -> Kind | None:
    """The index in this file, None where none is named; ValueError if it holds tokens that a model of `vocab` tokens
    does not know."""
    if path is None:
        return None
    index = load(kind, path, mapped=mapped)
    if any(each.max(initial=-1) >= vocab for each in tokens(index)):
        raise cross_vocabulary(path)
    return index


def speaks(path: str | Path, tokenizer: str) -> None:
    """Raise ValueError if an index is known to be for another tokenizer than the one with this fingerprint."""
    if tokenizer and header(path)["tokenizer"] not in ("", tokenizer):
        raise cross_vocabulary(path)


def cross_vocabulary(path: str | Path) -> ValueError:
    """An index was made for another tokenizer."""
    return ValueError(
        f"{path} was made for another tokenizer: build it again with the --tokenizer of your model"
    )


def load(kind: type[Kind], path: str | Path, tokenizer: str = "", *, mapped: bool = False) -> Kind:
    """Read an index of this class; ValueError if the file is cut off, of another kind, or for another tokenizer.

    `mapped`: the arrays stay on disk and are read as they are needed. Writing to them changes memory, not the file.
    """
    found = header(path)
    if found["kind"] != kind.kind:
        raise ValueError(f"{path} holds a {found['kind']} index: build one with --kind {kind.kind}")
    speaks(path, tokenizer)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        for name, each in found["arrays"].items():
            dtype, shape = TYPES[each["dtype"]], tuple(each["shape"])
            (start, end), count = each["data_offsets"], int(np.prod(shape, dtype=object))
            if min((0, start, *shape)) < 0 or end - start != count * dtype.itemsize:
                raise damaged()
            offset = found["start"] + start
            if mapped and count:
                array = np.asarray(np.memmap(path, dtype, mode="c", offset=offset, shape=shape))
            else:
                array = np.fromfile(path, dtype, count, offset=offset).reshape(shape)
            arrays[name] = array
        return kind.of(arrays, found["facts"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {damaged()}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def expect(
    arrays: Mapping[str, NDArray[Any]], dtype: Any = np.int32, **shapes: tuple[int | None, ...]
) -> Any:
    """The arrays of these names in order, each of its shape (None: any) and of one dtype; ValueError otherwise."""
    for name, shape in shapes.items():
        array = arrays[name]
        fits = len(array.shape) == len(shape) and all(
            a in (None, b) for a, b in zip(shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            raise damaged()
    return [arrays[name] for name in shapes]


def within(values: NDArray[Any], size: int) -> bool:
    """Whether all are indices of something of this size."""
    return not values.size or bool(values.min() >= 0 and values.max() < size)


def damaged() -> ValueError:
    return ValueError("the index contradicts itself: build it again with `outpace index build`")
