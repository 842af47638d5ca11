"""What pip does with the package in an environment that a user already has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines]


@pytest.mark.slow
def test_pip_keeps_a_pytorch_newer_than_any_tested(tmp_path: Path) -> None:
    """The environment claims to have every dependency, PyTorch in a version that does not exist yet."""
    builder = venv.EnvBuilder(with_pip=False)
    builder.create(tmp_path)
    [site] = tmp_path.glob("lib/python*/site-packages")
    for requirement in REQUIRED:
        newest = "5.99" if requirement.name == "transformers" else "2999.0"
        folder = site / f"{requirement.name}-{newest}.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {requirement.name}\nVersion: {newest}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "bin" / "python")]
    install = "install --quiet --disable-pip-version-check --dry-run --report -".split()
    alone = os.environ | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_CONSTRAINT": "",
    }  # not bound by this machine's settings
    finished = subprocess.run([*pip, *install, str(ROOT)], capture_output=True, text=True, env=alone)
    assert finished.returncode == 0, finished.stderr
    assert [each["metadata"]["name"] for each in json.loads(finished.stdout)["install"]] == ["outpace"]


def test_neither_python_nor_pytorch_has_an_upper_bound() -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains("3.99")
    [torch] = [requirement for requirement in REQUIRED if requirement.name == "torch"]
    assert torch.specifier.contains("2.11") and torch.specifier.contains("99.0")


def test_the_tested_version_of_every_dependency_is_pinned_for_development() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins.keys() == {requirement.name for requirement in (*REQUIRED, *EXTRAS)}
    for requirement in (*REQUIRED, *EXTRAS):
        assert requirement.specifier.contains(pins[requirement.name]), requirement
    for script in ("Makefile", "scripts/try_wheel"):
        installs = re.findall(r"pip install[^#]*?(?:\n|$)", (ROOT / script).read_text().replace("\\\n", ""))
        assert installs and all("--constraint constraints.txt" in line for line in installs), script
