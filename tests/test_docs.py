"""Every command and every program in the documentation works.

A fenced python, bash or console block is run here, or each of its commands stands in RUN_ELSEWHERE with the place that
runs it. The blocks of a page run in order in one empty directory, offline, and the python blocks continue one another.
A block titled with a file name (```python title="mine.py") is saved under that name for a later block to use.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_HERE = ("outpace ", "pytest ")
RUNNABLE = {"python", "py", "bash", "sh", "shell", "console"}

# command -> (file that runs it, the words there that do)
RUN_ELSEWHERE = {
    "git clone https://github.com/outpace-ai/outpace": (".ci/run", "from a fresh clone"),
    "cd outpace": (".ci/run", 'cd "$(dirname "$0")/.."'),
    "pip install .": ("scripts/try_wheel", "pip install"),
    "make install": (".ci/run", "make install"),
    ".venv/bin/pre-commit install": (".ci/run", ".venv/bin/pre-commit run"),
    "make demo": (".ci/run", "make demo"),
    "make test": (".ci/run", "make test"),
    "make check": (".ci/run", "make --keep-going check"),
    "make docs": (".ci/run", "make docs"),
    "make wheel": (".ci/run", "make wheel"),
    "make distribution": (".ci/run", "make test"),  # a part of it
    "make format": ("tests/test_kit.py", "test_make_knows_every_target_in_the_documentation"),
    "make bench-smoke": ("tests/test_kit.py", "test_make_knows_every_target_in_the_documentation"),
    "python -m benchmarks.forwards --threads 1 --cpu-time": (
        "tests/bench/test_programs.py",
        "test_forwards_are_timed_compiled_and_as_they_are",
    ),
    "make bench-compiled": ("tests/bench/test_make.py", "test_the_page_of_compiled_models_comes_out"),
    "make bench-compiled PEERS=transformers,openvino=ov/bin/python,vllm=vllm/bin/python": (
        "tests/bench/test_make.py",
        "test_engines_take_part_where_they_are_named",
    ),
    "make gpu-check OUT=out": ("tests/test_kit.py", "test_the_gpu_check_always_ends_and_reports"),
}


@dataclass(frozen=True)
class Block:
    """One fenced block: where it starts, its language, its title and its text."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page, nested indentation and longer fences included."""
    found: list[Block] = []
    fence, indent, start, info, body = "", 0, 0, "", list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"^(\s*)(`{3,}|~{3,})(.*)$", line)
        if not fence and mark:
            indent, fence, info, start, body = len(mark[1]), mark[2], mark[3].strip(), number, []
        elif fence and mark and mark[2].startswith(fence) and not mark[3].strip():
            title = re.search(r'title="([^"]+)"', info)
            language = re.split(r"[\s{]", info)[0].lower()
            found.append(Block(page, start, language, title[1] if title else "", "\n".join(body) + "\n"))
            fence = ""
        elif fence:
            body.append(line[indent:] if not line[:indent].strip() else line)
    assert not fence, f"{page}:{start} a fence that never closes"
    return found


def commands(block: Block) -> list[str]:
    """The commands of a shell block: no comments, continued lines joined, in a console only what follows the prompt."""
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        lines = [line[1:].strip() for line in lines if line.startswith("$")]
    stripped = [shlex.join(shlex.split(line, comments=True)) if "#" in line else line for line in lines]
    return [re.sub(r"\s+", " ", line) if "'" not in line else line for line in stripped if line]


def covered(command: str) -> bool:
    return command.startswith(RUN_HERE) or all(part.strip() in RUN_ELSEWHERE for part in command.split("&&"))


def uncovered(block: Block, later: list[Block]) -> list[str]:
    """What of a block nothing would run, one sentence each."""
    if block.language not in RUNNABLE:
        return []
    if block.title:
        used = any(block.title in other.text for other in later if other.language in RUNNABLE)
        return [] if used else [f"{block.where} saves {block.title}, which no later block uses"]
    if block.language in {"python", "py"}:
        return []
    return [f"{block.where} nothing runs: {command}" for command in commands(block) if not covered(command)]


def run_page(found: list[Block], directory: Path) -> None:
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "120",
    }
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        if block.language not in RUNNABLE:
            continue
        if block.title:
            (directory / block.title).write_text(block.text, encoding="utf-8")
        elif block.language in {"python", "py"}:
            # leading newlines give a traceback the line numbers of the page
            exec(compile("\n" * block.line + block.text, str(ROOT / block.page), "exec"), namespace)
        else:
            for command in commands(block):
                if command.startswith(RUN_HERE):
                    run_command(command, directory, environment, block.where)


def run_command(command: str, directory: Path, environment: dict[str, str], where: str) -> None:
    result = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; {command}"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, f"{where} {command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"


def blocks_of(page: Path) -> list[Block]:
    return blocks(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))


def test_every_block_is_run_by_something() -> None:
    found = [blocks_of(page) for page in PAGES]
    wrong = [why for page in found for i, block in enumerate(page) for why in uncovered(block, page[i + 1 :])]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", RUN_ELSEWHERE)
def test_what_is_run_elsewhere_is_run_there(command: str) -> None:
    path, words = RUN_ELSEWHERE[command]
    assert words in (ROOT / path).read_text(encoding="utf-8")


def runs_here(block: Block) -> bool:
    if block.language in {"python", "py"}:
        return not block.title
    return block.language in RUNNABLE and any(command.startswith(RUN_HERE) for command in commands(block))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(runs_here, blocks_of(page)))], ids=lambda page: page.name
)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_page(blocks_of(page), tmp_path)


def test_a_block_that_nothing_runs_is_caught() -> None:
    fence = "```"
    page = f'{fence}bash\nmake test\nrm -rf x  # no\n{fence}\n\n- item\n\n  {fence}python title="a.py"\n  1\n  {fence}\n'
    found = blocks("page.md", page)
    assert [block.language for block in found] == ["bash", "python"]
    assert found[1].text == "1\n"
    assert uncovered(found[0], []) == ["page.md:1 nothing runs: rm -rf x"]
    assert uncovered(found[1], []) == ["page.md:8 saves a.py, which no later block uses"]
    console = Block("page.md", 1, "console", "", "$ make demo\nits output\n$ outpace list \\\n  --json\n")
    assert commands(console) == ["make demo", "outpace list --json"]
    assert not uncovered(console, [])


def test_blocks_really_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved = Block("page.md", 1, "python", "a.py", "value = 3\n")
    first = Block("page.md", 5, "python", "", "names = {}\nexec(open('a.py').read(), names)\n")
    run_page([saved, first, Block("page.md", 9, "python", "", "assert names['value'] == 3\n")], tmp_path)
    with pytest.raises(AssertionError):
        run_page([saved, first, Block("page.md", 9, "python", "", "assert names['value'] == 4\n")], tmp_path)
