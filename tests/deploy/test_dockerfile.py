"""deploy/Dockerfile, without Docker: its instructions agree with the package, and its install step works."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.command_line import read_arguments
from tests.deploy.dockerfile import DOCKERFILE, ROOT, read

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def copied() -> dict[str, str]:
    """What is copied from the repository: paths there, and the folder or path in the image."""
    found: dict[str, str] = {}
    for arguments in DOCKERFILE.all("COPY"):
        if not arguments.startswith("--from="):
            *sources, target = arguments.split()
            found |= dict.fromkeys(sources, target)
    return found


def test_continued_lines_and_comments_are_read() -> None:
    found = read('# a\nFROM x\nRUN a && \\\n    # why\n    b \\\n    c\nHEALTHCHECK --x=1 CMD ["d", "e"]\n')
    assert found.instructions[:2] == [("FROM", "x"), ("RUN", "a && b c")]
    assert found.command("HEALTHCHECK") == ["d", "e"]
    with pytest.raises(ValueError, match="no instruction: run a"):
        read("run a\n")


def test_what_it_names_exists() -> None:
    assert copied() and all((ROOT / path).exists() for path in copied())
    needed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    assert needed <= copied().keys()
    [install] = [step for step in DOCKERFILE.all("RUN") if " pip install " in step]
    [extras] = re.findall(r"'/src\[([\w,-]+)\]'", install)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    constraints = re.findall(r"--constraint /src/(\S+)", install)
    assert constraints and set(constraints) <= copied().keys()


def test_the_python_of_the_image_is_one_of_the_package() -> None:
    [*images] = {image.split()[0] for image in DOCKERFILE.all("FROM")}
    assert images == ["python:3.11-slim"] and PROJECT["requires-python"] == ">=3.11"


def test_the_command_is_understood() -> None:
    found = read_arguments([*DOCKERFILE.command("ENTRYPOINT"), *DOCKERFILE.command("CMD")])
    assert found["target"] == "zoo:target" and found["host"] == "0.0.0.0"
    assert [str(found["port"])] == DOCKERFILE.all("EXPOSE")
    with pytest.raises(Exception, match="--no-such-option"):
        read_arguments([*DOCKERFILE.command("ENTRYPOINT"), "zoo:target", "--no-such-option", "1"])


def test_the_command_in_the_docs_is_understood_and_its_files_exist() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    [arguments] = re.findall(r"^docker run .*? outpace (.+)$", page.replace("\\\n", " "), re.MULTILINE)
    found = read_arguments([*DOCKERFILE.command("ENTRYPOINT"), *shlex.split(arguments)])
    assert found["target"] == "zoo:target" and found["compile"] is True
    files = set(re.findall(r"\bdeploy/[\w.-]+\w", page))
    assert files == {f"deploy/{path.name}" for path in (ROOT / "deploy").iterdir()}


def test_the_server_is_not_run_by_root_and_may_write_its_cache() -> None:
    [user], [volume] = DOCKERFILE.all("USER"), DOCKERFILE.all("VOLUME")
    [made] = [step for step in DOCKERFILE.all("RUN") if "useradd" in step]
    assert user == "outpace" and made.endswith(f"--owner {user} --group {user} {volume}")
    assert f"XDG_CACHE_HOME={volume}" in " ".join(DOCKERFILE.all("ENV"))


@pytest.mark.slow
def test_the_health_check_tells_a_running_server_from_none(container: Any) -> None:
    program, *arguments = DOCKERFILE.command("HEALTHCHECK")
    assert program == "python" and "127.0.0.1:8000" in arguments[-1]

    def status(address: str) -> int:
        command = [sys.executable, *(each.replace("127.0.0.1:8000", address) for each in arguments)]
        return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode

    with socket.create_server(("127.0.0.1", 0)) as listener:
        unused = listener.getsockname()[1]
    assert status(container.url.removeprefix("http://")) == 0
    assert status(f"127.0.0.1:{unused}") == 1


@pytest.mark.slow
def test_the_package_is_installed_from_what_is_copied(tmp_path: Path) -> None:
    """The step itself, in folders of this test, but for the packages that outpace needs: those are here."""
    source, environment = tmp_path / "src", tmp_path / "environment"
    source.mkdir()
    for path, target in copied().items():
        given, place = ROOT / path, Path(str(source) + target.removeprefix("/src"))
        if given.is_dir():
            shutil.copytree(given, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(given, place)
    [step] = [step for step in DOCKERFILE.all("RUN") if " pip install " in step]
    step = step.replace("/src", str(source)).replace("/opt/outpace", str(environment))
    step = re.sub(r"^python ", f"{sys.executable} ", step).replace(" pip install ", " pip install --no-deps ")
    variables = os.environ | {"TORCH_INDEX": tmp_path.as_uri()}
    subprocess.run(["sh", "-euc", step], env=variables, cwd=tmp_path, check=True, timeout=300)
    variables = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    place = [str(environment / "bin" / "python"), "-c", "import outpace; print(outpace.__file__)"]
    found = subprocess.run(place, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(environment))
    command = [str(environment / "bin" / "outpace"), "serve", "--help"]
    shown = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "--kv-memory" in shown.stdout
