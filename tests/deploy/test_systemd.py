"""deploy/outpace.service and its settings."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
import typer

from outpace.cli.app import app
from tests.deploy.command_line import read_arguments
from tests.deploy.dockerfile import ROOT

UNIT = ROOT / "deploy" / "outpace.service"
SETTINGS = ROOT / "deploy" / "outpace.env"


def unit() -> RawConfigParser:
    found = RawConfigParser(delimiters=["="])
    found.optionxform = str  # names of systemd's settings are case-sensitive
    found.read_string(UNIT.read_text(encoding="utf-8"))  # strict: no setting is given twice
    return found


def settings(text: str) -> dict[str, str]:
    """The variables of an environment file."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}


def expanded(command: str, variables: dict[str, str]) -> list[str]:
    """A command line as systemd expands it: ${NAME} within a word, $NAME alone into words."""
    found: list[str] = []
    for word in command.split():
        if word.startswith("$") and not word.startswith("${"):
            found += variables[word[1:]].split()
        else:
            for name, value in variables.items():
                word = word.replace(f"${{{name}}}", value)
            assert "$" not in word
            found.append(word)
    return found


def test_the_command_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    text = SETTINGS.read_text(encoding="utf-8")
    command = unit()["Service"]["ExecStart"]
    monkeypatch.delenv("OUTPACE_API_KEY", raising=False)
    found = read_arguments(expanded(command, settings(text)))
    assert found["target"] == "zoo:target" and found["host"] == "127.0.0.1" and not found["api_key"]
    assert found["kv_memory"] == "2GiB" and found["compile"] is True
    with_key = settings(text.replace("#OUTPACE_API_KEY=", "OUTPACE_API_KEY='one two'"))
    monkeypatch.setenv("OUTPACE_API_KEY", with_key["OUTPACE_API_KEY"])
    assert list(read_arguments(expanded(command, with_key))["api_key"]) == ["one", "two"]
    with pytest.raises(Exception, match="--no-such-option"):
        read_arguments(expanded(command, {"MODEL": "zoo:target", "OPTIONS": "--no-such-option"}))


def test_a_stop_takes_no_longer_than_systemd_waits() -> None:
    options = {each.name: each.default for each in typer.main.get_group(app).commands["serve"].params}
    from outpace.serving.http.app import SECONDS_TO_CLOSE
    from outpace.serving.http.server import SECONDS_TO_SEND

    longest = options["shutdown_timeout"] + 2 * SECONDS_TO_CLOSE + 2 * SECONDS_TO_SEND
    assert float(unit()["Service"]["TimeoutStopSec"]) >= longest


def test_what_programs_write_is_in_the_folder_of_the_service() -> None:
    service = unit()["Service"]
    folder = f"%C/{service['CacheDirectory']}"
    assert service["Environment"].split() == [f"HOME={folder}", f"XDG_CACHE_HOME={folder}"]
    assert "MemoryDenyWriteExecute" not in service  # OpenVINO writes machine code while it runs


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_it(tmp_path: Path) -> None:
    def complaints(text: str) -> subprocess.CompletedProcess[str]:
        copy = tmp_path / UNIT.name
        copy.write_text(text, encoding="utf-8")
        command = ["systemd-analyze", "verify", "--man=no", str(copy)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    # systemd also looks for the program
    text = UNIT.read_text(encoding="utf-8").replace("/opt/outpace/bin/outpace", sys.executable)
    accepted = complaints(text)
    assert (accepted.returncode, accepted.stderr) == (0, "")
    assert "ProtectSytem" in complaints(text.replace("ProtectSystem", "ProtectSytem")).stderr
