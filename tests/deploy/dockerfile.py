"""deploy/Dockerfile, read: instructions with their arguments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Dockerfile:
    """The instructions of a Dockerfile, in order: names and arguments, continued lines joined."""

    instructions: list[tuple[str, str]]

    def all(self, name: str) -> list[str]:
        """The arguments of each instruction of this name."""
        return [rest for each, rest in self.instructions if each == name]

    def command(self, name: str) -> list[str]:
        """The words of the only instruction of this name that is a JSON list, behind options and CMD."""
        [rest] = self.all(name)
        return json.loads(rest[rest.index("[") :])


def read(text: str) -> Dockerfile:
    """ValueError for a line that does not begin with an instruction."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[tuple[str, str]] = []
    for line in filter(str.strip, joined.splitlines()):
        match = re.match(r"([A-Z]+) +(\S.*)$", line)
        if match is None:
            raise ValueError(f"this is no instruction: {line}")
        found.append((match[1], match[2]))
    return Dockerfile(found)


DOCKERFILE = read((ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"))
