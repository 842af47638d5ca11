"""What each method's paper claims, and what here tests or measures it: docs/evidence/FAMILY.toml as tables.

A file has a `title`, and for each method a list of rows: `[[METHOD]]` with the claim, a verdict of VERDICTS,
`evidence`, a list of tests (`tests/FILE.py::test_name`) and of sections of the documentation
(`results/PAGE.md` or `log.md#ENTRY`), and a note that says what is missing, unless the claim is met. Every
recipe also has the row of its promise, which the proofs show.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown.extensions.toc import slugify

from outpace import recipes
from outpace.recipes._planned import PROGRAMS
from outpace.training import methods as training

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CLAIMS = DOCS / "evidence"
MET, OPEN, MISSED, NOT_HERE = "met", "open", "missed", "cannot be shown here"
VERDICTS = (MET, OPEN, MISSED, NOT_HERE)
COLUMNS = "Claim | Verdict | Tested or measured here"
LOG_ENTRY = re.compile(r"^- \*\*(?P<title>.+?)\*\*", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One claim."""

    claim: str
    verdict: str
    evidence: Sequence[str] = ()
    note: str = ""


PROOFS = tuple(
    f"tests/proof/test_recipes.py::{name}"
    for name in (
        "test_drafts_are_accepted_and_the_distribution_is_the_promised_one",
        "test_the_distribution_is_the_promised_one_with_every_option",
    )
)
PROMISES = {
    "exact": Row("Texts have the target's own distribution, at any temperature.", MET, PROOFS),
    "lossy": Row(
        "Texts have the distribution that the method states, and the target's at its exact limit.",
        MET,
        PROOFS,
    ),
}


@cache
def claims() -> dict[str, tuple[str, dict[str, list[Row]]]]:
    """File name -> (title, method -> rows). TypeError for a row with a missing or an unknown field."""
    found: dict[str, tuple[str, dict[str, list[Row]]]] = {}
    for path in sorted(CLAIMS.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        title = data.pop("title")
        found[path.name] = title, {name: [Row(**each) for each in rows] for name, rows in data.items()}
    return found


def methods() -> set[str]:
    """What has to have a row: recipes, what `outpace train` trains, and methods that are programs."""
    return {each.name for each in recipes.entries()} | set(training.methods()) | PROGRAMS


def rows_of(method: str) -> list[Row]:
    """The rows of a method; a recipe's promise is the first."""
    guarantees = {each.name: each.guarantee for each in recipes.entries()}
    promise = [PROMISES[guarantees[method]]] if method in guarantees else []
    return promise + [row for _, found in claims().values() for row in found.get(method, ())]


@cache
def tests_in(path: str) -> frozenset[str]:
    """The names of the tests in a file; empty if there is no such file."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    named = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in named if name.startswith("test_"))


@cache
def anchors_in(page: str) -> dict[str, str]:
    """Anchor -> title of the headings of a page in docs/, and of the entries of the log; "" is the page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    titles = [match["title"] for match in HEADING.finditer(text)]
    found = {anchor_of(each): each for each in titles}
    found |= {anchor_of(match["title"]): plain(match["title"]) for match in LOG_ENTRY.finditer(text)}
    return {"": titles[0]} | found


def plain(title: str) -> str:
    return " ".join(title.replace("`", "").split()).rstrip(".")


def anchor_of(title: str) -> str:
    return slugify(plain(title), "-")


def with_anchors(log: str) -> str:
    """The log's Markdown, in which each entry's title can be linked to."""
    return LOG_ENTRY.sub(lambda found: f"{found[0]}{{ #{anchor_of(found['title'])} }}", log)


def problems() -> Iterator[str]:
    """What is wrong with the files, each a sentence that says what to do."""
    for name in sorted(methods() - {each for _, found in claims().values() for each in found}):
        yield (
            f"{name} has no row: add [[{name}]] with claim, verdict and evidence, or a note, to the file of "
            f"its family in docs/evidence; what nothing tests has the verdict {OPEN!r}"
        )
    for file, (_, found) in claims().items():
        for name in sorted(found.keys() - methods()):
            yield f"docs/evidence/{file} has rows of {name}, which is no method: see `outpace list`"
        for name, rows in found.items():
            for row in rows:
                for problem in problems_of(row):
                    yield f"docs/evidence/{file}, {name}, {row.claim[:40]!r}: {problem}"


def problems_of(row: Row) -> Iterator[str]:
    if row.verdict not in VERDICTS:
        yield f"the verdict is {row.verdict!r}: use one of {', '.join(VERDICTS)}"
    if row.verdict in (MET, MISSED) and not row.evidence:
        yield f"nothing shows that it is {row.verdict}: link a test or a result, or use the verdict {OPEN!r}"
    if row.verdict != MET and not row.note:
        yield "it is not met: say in a note what is missing or why"
    if re.search(r"\]\(|\|", row.claim + row.note):
        yield "claims and notes are cells of tables on pages of several folders: put links into evidence"
    for link in row.evidence:
        path, _, test = link.partition("::")
        page, _, anchor = link.partition("#")
        if path.startswith("tests/"):
            if test not in tests_in(path):
                yield f"there is no test {link}: name one as tests/FILE.py::test_name"
        elif not (DOCS / page).is_file() or anchor not in anchors_in(page):
            yield f"there is no {link} in docs/: name a page and one of its headings, or an entry of the log"


def linked(link: str, to_docs: str) -> str:
    """A Markdown link to a test or a section; `to_docs`: from the page's folder to docs/."""
    path, _, test = link.partition("::")
    if test:
        words = test.removeprefix("test_").replace("_", " ")
        return f"[test: {words}](https://github.com/outpace-ai/outpace/blob/main/{path})"
    page, _, anchor = link.partition("#")
    title = anchors_in(page)[anchor]
    return f"[{'log: ' if page == 'log.md' else ''}{title}]({to_docs}{link})"


def cells(row: Row, to_docs: str) -> str:
    shown = [linked(each, to_docs) for each in row.evidence] + [row.note] * bool(row.note)
    return f"{row.claim} | {row.verdict} | {'<br>'.join(shown)}"


def section(method: str) -> list[str]:
    """Markdown lines: the table on the page of a method."""
    lines = ["## Claims and evidence", "", f"| {COLUMNS} |", "|---|---|---|"]
    return [*lines, *(f"| {cells(row, '../')} |" for row in rows_of(method)), ""]


def tables() -> str:
    """Markdown: how many claims have which verdict, and a table for each file."""
    rows = [row for _, found in claims().values() for each in found.values() for row in each]
    counts = Counter(row.verdict for row in rows)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    pages = {each.name for each in recipes.entries()}
    lines = [f"{len(rows)} claims of {len(methods())} methods: {verdicts}.", ""]
    for title, found in claims().values():
        lines += [
            f"## {title}",
            "",
            "| Method | Claim | Verdict | Tested or measured here |",
            "|---|---|---|---|",
        ]
        for name, each in found.items():
            method = f"[{name}](methods/{name}.md)" if name in pages else f"`{name}`"
            lines += [f"| {method} | {cells(row, '')} |" for row in each]
        lines.append("")
    return "\n".join(lines)
