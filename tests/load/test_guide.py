"""The commands of the guide, with stub servers in place of the servers they name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "load.md"
COMMANDS = re.findall(r"^outpace load (.+)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_guide_run(command, load, start_stub):
    for address in set(re.findall(r"http://localhost:\d+", command)):
        command = command.replace(address, start_stub().url)
    # later options win: as in the other tests, few requests that come fast
    shown = load(*shlex.split(command), "--rates", 1000)
    assert shown.exit_code == 0, shown.output
    assert "Throughput" in shown.stdout


def test_the_guide_has_commands():
    assert len(COMMANDS) == 4
