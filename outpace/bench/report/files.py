"""Output files of a benchmark: paths are checked before the first run, files are written after the tables are
printed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from outpace.bench.measure.measurement import Measurement
from outpace.bench.report.html import to_html
from outpace.bench.report.json_file import write_json
from outpace.bench.report.report import to_json, to_markdown
from outpace.bench.report.summary import ResultRow

NAMES = ("bench.json", "bench.md", "bench.html")  # file names when the output path is a folder
PAGES: Mapping[str, Callable[[Measurement, Sequence[ResultRow]], str]] = {
    ".md": to_markdown,
    ".html": to_html,
}
SUFFIXES = (".json", *PAGES)


def expanded(
    outputs: Sequence[Path], names: Sequence[str] = NAMES, suffixes: Sequence[str] = SUFFIXES
) -> list[Path]:
    """The files to write; a path without a suffix is a folder that gets files with these names. ValueError
    for an unknown suffix."""
    files = [
        file for path in outputs for file in ([path / name for name in names] if not path.suffix else [path])
    ]
    if wrong := [str(file) for file in files if file.suffix not in suffixes]:
        raise ValueError(
            f"{wrong[0]} cannot be written: use a name that ends with {', '.join(suffixes)}, "
            "or one without a suffix for a folder"
        )
    return files


def check_writable(files: Sequence[Path], *, drawn: Sequence[str] = ()) -> None:
    """Create the parent folders of these files; ValueError if a file cannot be written.

    ModuleNotFoundError if a file has a suffix of `drawn` and matplotlib, which draws its charts, is missing.
    """
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} cannot be written: it is a folder")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=file.parent):
                pass
        except OSError as error:
            raise ValueError(f"{file} cannot be written: {error.strerror}") from error
    if any(file.suffix in drawn for file in files):
        import_module("matplotlib")


def write_files(measurement: Measurement, rows: Sequence[ResultRow], files: Sequence[Path]) -> list[str]:
    """Write the files of a benchmark, as `write_all` does. Without result rows only JSON is written."""

    def write(file: Path) -> None:
        if file.suffix == ".json":
            write_json(file, to_json(measurement, rows))
        elif rows:
            file.write_text(PAGES[file.suffix](measurement, rows), encoding="utf-8")

    return write_all(files, write, lambda: to_json(measurement, rows))


def write_all(
    files: Sequence[Path], write: Callable[[Path], None], data: Callable[[], Mapping[str, Any]]
) -> list[str]:
    """Call `write` for each file and return an error message for each that failed. After a failure the JSON
    object of `data` also goes to a temporary file, and the last message gives its path."""
    failures: list[str] = []
    for file in files:
        try:
            write(file)
        except OSError as error:
            failures.append(f"{file} could not be written: {error.strerror}")
    if failures:
        handle, name = tempfile.mkstemp(prefix="outpace-bench-", suffix=".json")
        os.close(handle)
        write_json(Path(name), data())
        failures.append(f"the measurement is in {name}")
    return failures
