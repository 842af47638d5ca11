"""Output files of a benchmark: paths are checked before the first run, files are written after the tables are
printed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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


def expanded(outputs: Sequence[Path]) -> list[Path]:
    """The files to write; a path without a suffix is a folder that gets all of NAMES. ValueError for an
    unknown suffix."""
    files = [
        file for path in outputs for file in ([path / name for name in NAMES] if not path.suffix else [path])
    ]
    if wrong := [str(file) for file in files if file.suffix not in SUFFIXES]:
        raise ValueError(
            f"{wrong[0]} cannot be written: use a name that ends with {', '.join(SUFFIXES)}, "
            "or one without a suffix for a folder"
        )
    return files


def check_writable(files: Sequence[Path]) -> None:
    """Create the parent folders of these files; ValueError if a file cannot be written."""
    for file in files:
        if file.is_dir():
            raise ValueError(f"{file} cannot be written: it is a folder")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=file.parent):
                pass
        except OSError as error:
            raise ValueError(f"{file} cannot be written: {error.strerror}") from error


def write_files(measurement: Measurement, rows: Sequence[ResultRow], files: Sequence[Path]) -> list[str]:
    """Write the files of a benchmark and return an error message for each that failed. After a failure the
    JSON also goes to a temporary file, and the last message gives its path. Without result rows only JSON is
    written."""
    failures: list[str] = []
    for file in files:
        try:
            if file.suffix == ".json":
                write_json(file, to_json(measurement, rows))
            elif rows:
                file.write_text(PAGES[file.suffix](measurement, rows), encoding="utf-8")
        except OSError as error:
            failures.append(f"{file} could not be written: {error.strerror}")
    if failures:
        handle, name = tempfile.mkstemp(prefix="outpace-bench-", suffix=".json")
        os.close(handle)
        write_json(Path(name), to_json(measurement, rows))
        failures.append(f"the measurement is in {name}")
    return failures
