"""pytest plugin that skips tests which fail because a package of an extra is not installed.

`make test` does not load it: there all extras are installed, and a missing module is a bug. Only packages
that pyproject.toml lists under an extra are considered, so a misspelt import still fails.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
IMPORTED_AS = {"faiss-cpu": "faiss", "prometheus-client": "prometheus_client", "pyyaml": "yaml"}


def extras() -> dict[str, str]:
    """Import name -> extra, for every package listed under an extra in pyproject.toml."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    found: dict[str, str] = {}
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            name = re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0]
            found[IMPORTED_AS.get(name, name.replace("-", "_"))] = extra
    return found


def missing(error: BaseException | None) -> str | None:
    """Skip reason if `error` or one of its causes is the failed import of an extra's package, else None."""
    known = extras()
    while error is not None:
        if isinstance(error, ImportError) and error.name and (top := error.name.split(".")[0]) in known:
            return f"needs {top} (pip install 'outpace[{known[top]}]')"
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    if report.outcome == "failed" and call and call.excinfo and (why := missing(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {why}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.outcome == "failed" and call.excinfo and (why := missing(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {why}")
    return report
