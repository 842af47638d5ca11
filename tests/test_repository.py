"""The repository is consistent: no silenced checker, one version, generated README sections up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zlib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import front_page
from outpace import recipes

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MEGABYTE = 1 << 20


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_no_line_silences_a_checker() -> None:
    # the brackets keep the pattern from matching this line
    silencing = re.compile(r"#.*([n]oqa|type:\s*[i]gnore|pyright:\s*\w|[p]ragma: no cover)")
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for folder in ("outpace", "benchmarks", "zoo_training", "tests", "scripts")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if silencing.search(line)
    ]
    assert not found, "\n".join(found)
    ruff, pyright = PROJECT["tool"]["ruff"], PROJECT["tool"]["pyright"]
    assert ruff["lint"].keys() == {"select"} and "exclude" not in ruff
    assert "ignore" not in pyright and "exclude" not in pyright


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r'^__version__ = "(.+)"$', read("outpace/__init__.py"), re.MULTILINE)
    cited = re.search(r"^version: (.+)$", read("CITATION.cff"), re.MULTILINE)
    assert version and cited and version[1] == cited[1]


def test_every_dependency_has_a_reason() -> None:
    decisions = read("docs/decisions.md")
    extras = PROJECT["project"]["optional-dependencies"]
    requirements = [*PROJECT["project"]["dependencies"], *[r for group in extras.values() for r in group]]
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in requirements]
    rows = [line for line in decisions.splitlines() if line.startswith("|")]
    missing = [
        name for name in names if not any(re.search(rf"[ ,|]{re.escape(name)}[ ,|]", row) for row in rows)
    ]
    assert not missing


def test_make_knows_every_target_in_the_documentation() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {
        (path.name, target)
        for path in pages
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named and not {(name, target) for name, target in named if target not in targets}


def test_ci_begins_with_the_test_line_of_the_readme_and_runs_both_tiers() -> None:
    assert "```bash\nmake test\n```" in read("README.md")
    lines = [line.split(";")[1].strip() for line in read(".ci/run").splitlines() if line.startswith("step ")]
    assert lines[0] == "make test" and lines[-1] == "make test-slow"
    assert "set -euo pipefail" in read(".ci/run")


def test_the_generated_sections_of_the_readme_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    readme = read("README.md")
    assert front_page.filled(readme) == readme, "run python -m benchmarks.front_page"
    assert import_module("headline").filled(readme) == readme, "run scripts/headline.py"


@pytest.mark.slow
def test_the_tables_of_speedups_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    pytest.importorskip("mkdocs")
    table = import_module("methods_table")
    for page in table.PAGES:
        assert table.filled(page) == page.read_text(encoding="utf-8"), "run scripts/methods_table.py"
    filled = import_module("speedup_tables").filled
    for page in ("docs/which-method.md", "docs/vocabularies.md"):
        assert read(page).count("\n| `") > 3 and filled(read(page)) == read(page), (
            "run scripts/speedup_tables.py"
        )


def test_links_between_pages_lead_to_files_of_the_repository() -> None:
    """Also those to methods, whose pages exist on the site alone."""
    pages = ["README.md", "CONTRIBUTING.md"]
    pages += [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    missing: list[str] = []
    for page in pages:
        text = re.sub(r"^(`{3,}).*?^\1", "", read(page), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)", text):
            path = target.partition("#")[0]
            if path and "://" not in path and not (ROOT / page).parent.joinpath(path).exists():
                missing.append(f"{page}: {target}")
    assert len(pages) > 30 and not missing


def test_the_site_links_to_the_pages_of_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    pytest.importorskip("mkdocs")
    hooks = import_module("docs_hooks")
    text = "[auto](../outpace/recipes/control/auto.py), [o](../outpace/recipes/x/omnidraft/recipe.py)"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="zoo.md"))
    assert (
        hooks.on_page_markdown(text, page, None, None) == "[auto](methods/auto.md), [o](methods/omnidraft.md)"
    )
    text = "<!-- source: outpace/decode.py Session.commit -->\n[`Session.commit`](../outpace/decode.py)\n"
    found = hooks.on_page_markdown(text, page, None, None)
    assert found.startswith("```python\ndef commit(") and "](../" not in found


def test_methods_of_papers_have_their_figures() -> None:
    figures = json.loads(read("docs/methods/papers.json"))
    found = recipes.find()
    assert not figures.keys() - found.keys()
    without = {name for name, recipe in found.items() if recipe.paper.startswith("arXiv")} - figures.keys()
    assert without == {"exp3-spec"}  # its paper is that of ucb-spec


def test_tracked_files_stay_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    sizes = [
        path.stat().st_size for name in listed.stdout.split("\0") if (path := ROOT / name).is_file() and name
    ]
    assert sum(sizes) <= 100 * MEGABYTE


@pytest.mark.slow
def test_the_package_is_downloaded_quickly() -> None:
    """Its files compressed, as in a wheel."""
    files = [
        each for each in (ROOT / "outpace").rglob("*") if each.is_file() and "__pycache__" not in each.parts
    ]
    assert sum(len(zlib.compress(each.read_bytes(), 1)) for each in files) <= 60_000_000


def test_the_loop_stays_readable_at_once() -> None:
    assert len(read("outpace/decode.py").splitlines()) <= 165


@pytest.mark.slow
def test_the_gpu_check_always_ends_and_reports(tmp_path: Path) -> None:
    """With next to no time it stops what it started and still writes what it knows."""
    command = [sys.executable, "scripts/gpu_check.py", "--out", str(tmp_path), "--limit", "2"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 1
    result = json.loads((tmp_path / "tests.json").read_text(encoding="utf-8"))
    assert result["timed_out"] and (tmp_path / "tests.md").exists() and (tmp_path / "bench.txt").exists()


@pytest.mark.slow
def test_a_missing_extra_skips_a_test_and_a_misspelling_does_not(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(
        "def lazily(name):\n    raise ModuleNotFoundError(f'No module named {name}', name=name)\n"
        "def test_extra():\n    lazily('faiss')\n"
        "def test_misspelt():\n    lazily('fiass')\n",
        encoding="utf-8",
    )
    (tmp_path / "test_top.py").write_text(
        "raise ModuleNotFoundError('No module named numba', name='numba')\n", encoding="utf-8"
    )
    options = "-q -rs -p missing_extras -p no:cacheprovider".split()
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT / "scripts")}
    finished = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 2 skipped" in finished.stdout, finished.stdout
    assert "outpace[retrieval]" in finished.stdout
