"""Every command and every program in the documentation works.

A fenced python, bash or console block is run here, or each of its commands is listed in RUN_ELSEWHERE with
the file that runs it. The blocks of a page run in order in one empty directory, offline, in this process:
`outpace ...` through the command line's entry point, and the python blocks of a page share one namespace. A
block titled with a file name (```python title="mine.py") is saved under that name for later blocks. In a
console block the lines below a command must be part of its output, up to digits and spaces.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from outpace.cli import main
from outpace.proof import suite
from tests.tiers import only

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_HERE = ("outpace ", "pytest ")
# make test runs the README but for these commands; pytest in a process of its own
SLOW = (
    "outpace audit",
    "pytest ",
    "outpace train",
    'outpace generate "def add(a, b):" --target zoo:target --method coral',
    'outpace generate "def add(a, b):" --target zoo:target --method eagle3',
    'outpace generate "def add(a, b):" --target zoo:target --method gto',
    'outpace generate "def add(a, b):" --target zoo:target --method multilingual-drafter',
    'outpace generate "def add(a, b):" --target zoo:target --method speculative-sampling --draft domain',
    "outpace bench --target zoo:target --methods autoregressive,eagle3",
    "outpace bench --target zoo:target --methods autoregressive,dflash",
    "outpace export block",
    'outpace generate "def add(a, b):" --target zoo:target --draft zoo:draft --method specdec-pp',
    'outpace generate "def add(a, b):" --target zoo:target --draft zoo:draft --method disco',
    'outpace generate "def add(a, b):" --target zoo:target --draft zoo:draft --method sprinter',
    'outpace generate "def add(a, b):" --target zoo:target --draft zoo:draft --method specbranch',
    'outpace generate "What is 8 - 5?"',
    'outpace generate "def add(a, b):" --target zoo:target --method adaeagle',
    'outpace generate "def add(a, b):" --target exits',
)
RUNNABLE = {"python", "py", "bash", "sh", "shell", "console"}

# command -> (file that runs it, the words there that do)
RUN_ELSEWHERE = {
    "git clone https://github.com/outpace-ai/outpace": (".ci/run", "from a fresh clone"),
    "cd outpace": (".ci/run", 'cd "$(dirname "$0")/.."'),
    "pip install .": ("scripts/try_wheel", "pip install"),
    "make install": (".ci/run", "make test"),  # which installs first
    ".venv/bin/pre-commit install": (".ci/run", ".venv/bin/pre-commit run"),
    "make demo": (".ci/run", "make demo"),
    "make test": (".ci/run", "make test"),
    "make check": (".ci/run", "make --keep-going check"),
    "python -m benchmarks.forwards --threads 1 --cpu-time": (
        "tests/bench/test_benchmark_programs.py",
        "test_forwards_are_timed_compiled_and_as_they_are",
    ),
    "python -m benchmarks.draft_design --layers 1,4 --lengths 1,2,4 --num-prompts 1 --max-tokens 16": (
        "tests/draft_design/test_program.py",
        "test_real_measurements_have_the_same_structure",
    ),
    "make bench-compiled": (
        "tests/peers/test_make_bench_compiled.py",
        "test_compiled_models_are_measured_and_reported",
    ),
    "make bench-compiled PEERS=transformers,openvino=ov/bin/python,vllm=vllm/bin/python": (
        "tests/peers/test_make_bench_compiled.py",
        "test_engines_take_part_where_they_are_named",
    ),
    "python -m zoo_training target --steps 2 --out zoo-build": (
        "tests/zoo/test_build.py",
        "test_the_command_passes_its_options_on",
    ),
    "outpace audit --endpoint http://localhost:8000/v1 --model zoo:target --reference zoo:target": (
        "tests/audit/test_own_server.py",
        "test_the_command_of_the_page_gives_its_output",
    ),
    "outpace serve zoo:target --draft zoo:draft --method online-sd --requests 2 --learn learned": (
        "tests/serving/learning/test_server.py",
        "test_killing_the_trainer_and_the_server_loses_nothing",
    ),
    **dict.fromkeys(
        (
            "outpace serve zoo:target --draft zoo:draft --method speculative-sampling",
            "python client.py",
            "outpace serve zoo:target --draft zoo:draft --methods prompt-lookup",
            "python ask.py",
            "python steps.py",
            "python tools.py",
            "python choice.py",
        ),
        ("Makefile", "scripts/serve_demo.py README.md docs/serving.md"),
    ),
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
    """The commands of a shell block, continued lines joined; in a console those after `$`."""
    text = block.text.replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines()]
    if block.language == "console":
        lines = [line[1:].strip() for line in lines if line.startswith("$")]
    stripped = [shlex.join(shlex.split(line, comments=True)) if "#" in line else line for line in lines]
    return [re.sub(r"\s+", " ", line) if "'" not in line else line for line in stripped if line]


def covered(command: str) -> bool:
    return is_run_here(command) or all(part.strip() in RUN_ELSEWHERE for part in command.split("&&"))


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


def expected_output(block: Block, command: str) -> list[str]:
    """The output lines that a console block shows below `command`."""
    if block.language != "console":
        return []
    shown: list[str] = []
    current = ""
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$"):
            [current] = commands(Block(block.page, block.line, "console", "", line))
        elif current == command and line.strip() not in {"", "..."}:
            shown.append(line)
    return shown


def is_run_here(command: str) -> bool:
    return command.startswith(RUN_HERE) and command not in RUN_ELSEWHERE


def is_slow(command: str) -> bool:
    return command.startswith(SLOW)


def run_page(found: list[Block], directory: Path, *, selected: Callable[[str], bool], python: bool) -> None:
    """Save titled blocks, run python blocks (if `python`) and `selected` commands, in the page's order."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        if block.title:
            (directory / block.title).write_text(block.text, encoding="utf-8")
        elif block.language not in RUNNABLE:
            continue
        elif block.language in {"python", "py"}:
            if python:
                # leading newlines give a traceback the line numbers of the page
                exec(compile("\n" * block.line + block.text, str(ROOT / block.page), "exec"), namespace)
        else:
            for command in filter(selected, commands(block)):
                if is_run_here(command):
                    output = without_digits(run_command(command, directory, block.where))
                    for line in expected_output(block, command):
                        assert without_digits(line) in output, (
                            f"{block.where} {command} does not print: {line}"
                        )


def without_digits(text: str) -> str:
    """`text` with every number replaced by 0 and every run of blanks by one."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?(e-?\d+)?", "0", text)).strip()


def run_command(command: str, directory: Path, where: str) -> str:
    """Run one line: `outpace` in this process (`> file` works), anything else in a process of its own."""
    arguments = shlex.split(command)
    if arguments[0] != "outpace" or set(arguments) & {"|", "&&", "<"}:
        return run_subprocess(command, directory, where)
    target = None
    if ">" in arguments:
        target = directory / arguments[arguments.index(">") + 1]
        arguments = arguments[: arguments.index(">")]
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        patch.setattr(sys, "stdin", io.StringIO())
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                main()
                code: object = 0
            except SystemExit as end:
                code = end.code or 0
    assert code == 0, f"{where} {command}\n{output.getvalue()[-2000:]}\n{errors.getvalue()[-4000:]}"
    if target is not None:
        target.write_text(output.getvalue(), encoding="utf-8")
    return output.getvalue()


def run_subprocess(command: str, directory: Path, where: str) -> str:
    """Run one line of shell in a process of its own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    result = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; {command}"],
        cwd=directory,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, f"{where} {command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
    return result.stdout


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


def test_what_is_run_elsewhere_is_in_a_page() -> None:
    shells = [block for page in PAGES for block in blocks_of(page) if block.language in RUNNABLE]
    lines = [line for block in shells if block.language not in {"python", "py"} for line in commands(block)]
    named = {part.strip() for line in lines for part in line.split("&&")}
    assert not RUN_ELSEWHERE.keys() - named


def test_the_navigation_has_every_page_once() -> None:
    written = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES if ROOT / "docs" in page.parents]
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(written)


def runs_here(block: Block, *, slow: bool) -> bool:
    if block.language in {"python", "py"}:
        return not block.title and not slow
    own = [command for command in commands(block) if is_run_here(command)]
    return block.language in RUNNABLE and any(is_slow(command) == slow for command in own)


def pages_with(*, slow: bool) -> list[Path]:
    return [page for page in PAGES if any(runs_here(block, slow=slow) for block in blocks_of(page))]


@pytest.fixture
def page_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to run a page in, offline and with 120 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.mark.parametrize("page", only([PAGES[0]], pages_with(slow=False)), ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_in_order(page: Path, page_directory: Path) -> None:
    run_page(blocks_of(page), page_directory, selected=lambda command: not is_slow(command), python=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with(slow=True), ids=lambda page: page.name)
def test_the_slow_commands_of_a_page_run(
    page: Path, page_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # audits run in this process, on two kinds of models, with short texts and few mistakes: tests/proof has
    # the others
    monkeypatch.setattr("outpace.cli.commands.audit.num_cpus", lambda: 1)
    plans = {kind: replace(suite.PLANS[kind], most=300, most_varied=80) for kind in ("table", "transformers")}
    monkeypatch.setattr(suite, "PLANS", plans)
    few = {name: error for name, error in suite.mistakes().items() if name.endswith("in the cache")}
    assert few
    monkeypatch.setattr(suite, "mistakes", lambda: few)
    run_page(blocks_of(page), page_directory, selected=is_run_here, python=False)


def test_the_installed_command_runs_in_a_process_of_its_own(page_directory: Path) -> None:
    assert "speculative-sampling" in run_subprocess("outpace list", page_directory, "here")


def test_a_block_that_nothing_runs_is_caught() -> None:
    fence = "```"
    page = f"{fence}bash\nmake test\nrm -rf x  # no\n{fence}\n\n- item\n\n"
    page += f'  {fence}python title="a.py"\n  1\n  {fence}\n'
    found = blocks("page.md", page)
    assert [block.language for block in found] == ["bash", "python"]
    assert found[1].text == "1\n"
    assert uncovered(found[0], []) == ["page.md:1 nothing runs: rm -rf x"]
    assert uncovered(found[1], []) == ["page.md:8 saves a.py, which no later block uses"]
    console = Block("page.md", 1, "console", "", "$ make demo\nits output\n$ outpace list \\\n  --json\n")
    assert commands(console) == ["make demo", "outpace list --json"]
    assert not uncovered(console, [])


def test_blocks_really_run(page_directory: Path) -> None:
    def run(*blocks: Block) -> None:
        run_page(list(blocks), page_directory, selected=lambda command: True, python=True)

    saved = Block("page.md", 1, "python", "a.py", "value = 3\n")
    first = Block("page.md", 5, "python", "", "names = {}\nexec(open('a.py').read(), names)\n")
    run(saved, first, Block("page.md", 9, "python", "", "assert names['value'] == 3\n"))
    with pytest.raises(AssertionError):
        run(saved, first, Block("page.md", 9, "python", "", "assert names['value'] == 4\n"))
    run(Block("page.md", 1, "console", "", "$ outpace --version\noutpace 9.9.9\n"))
    with pytest.raises(AssertionError, match="does not print"):
        run(Block("page.md", 1, "console", "", "$ outpace --version\nsomething else\n"))
    with pytest.raises(AssertionError, match="no-such-method"):
        run(Block("page.md", 1, "bash", "", "outpace show no-such-method\n"))
