"""The training corpus of code: the standard library's source of the running Python."""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = (
    "textwrap heapq bisect shlex fnmatch statistics calendar queue sched csv getopt string graphlib colorsys "
    "cmd"
).split()

# Excluded folders and files: data tables, vendored wheels, tests, and applications rather than libraries.
LEFT_OUT = set(
    "__pycache__ config encodings ensurepip idlelib lib2to3 pydoc_data site-packages dist-packages test "
    "tests turtledemo idle_test".split()
)
LEFT_OUT_FILES = {"this.py", "turtle.py", "_pydecimal.py", "antigravity.py"}
MOST_DIGITS = 0.08  # share of digits in a file's characters; files with more are tables and are excluded
MOST_CHARACTERS = 160_000  # longer files are excluded, so that no file is a large share of the corpus


@dataclass(frozen=True)
class Corpus:
    """Contents of the source files, sorted by file name, in a training and a held-out part."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    names: tuple[str, ...]  # relative paths of the files in `train`
    sha256: str  # hash of the names and contents of both parts


def is_table(text: str) -> bool:
    """Whether a file has many digits; these are single tokens that cannot be predicted."""
    digits = sum(text.count(character) for character in set(text) if character.isdigit())
    return digits > MOST_DIGITS * max(1, len(text))


def is_source(path: Path, root: Path) -> bool:
    """Whether a file below `root` is not excluded by LEFT_OUT or LEFT_OUT_FILES."""
    parts = path.relative_to(root).parts
    left_out = any(part in LEFT_OUT or part.startswith(("config-", "_sysconfigdata")) for part in parts)
    return not left_out and path.name not in LEFT_OUT_FILES


def read_corpus(root: Path | None = None) -> Corpus:
    """Read the library below `root` (default: that of the running Python), split into training and held-out
    files."""
    folder = root or Path(sysconfig.get_paths()["stdlib"])
    train: list[str] = []
    names: list[str] = []
    held_out: list[str] = []
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if not is_source(path, folder):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) < 200 or len(text) > MOST_CHARACTERS or is_table(text):
            continue
        name = path.relative_to(folder).as_posix()
        digest.update(name.encode() + b"\0" + text.encode() + b"\0")
        if name.removesuffix(".py") in HELD_OUT:
            held_out.append(text)
        else:
            train.append(text)
            names.append(name)
    return Corpus(tuple(train), tuple(held_out), tuple(names), digest.hexdigest())
