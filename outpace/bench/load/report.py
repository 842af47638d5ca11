"""The results of a load test as JSON, Markdown, a picture and one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from outpace.bench.load.chart import chart
from outpace.bench.load.load_test import LoadTest
from outpace.bench.load.objectives import Objectives
from outpace.bench.load.ratios import RatioRow, compare
from outpace.bench.load.summary import LoadRow, summarise
from outpace.bench.load.tables import messages, tables
from outpace.bench.report import plot
from outpace.bench.report.html import TEMPLATES
from outpace.bench.report.json_file import write_json
from outpace.tables import markdown

SCHEMA = "outpace-load/1"
NAMES = ("load.json", "load.md", "load.html", "load.svg")  # file names when the output path is a folder
SUFFIXES = (".json", ".md", ".html", ".svg", ".png")
TITLE = "Servers under load"
ABOUT = (
    "In each round every contender gets every load for one turn, with the same prompts in the same order and "
    "the same arrival times. Requests at a rate arrive as a Poisson process and are sent whether or not "
    "others have been answered. The clock of a request starts when it is sent, before a connection is opened."
)


@dataclass(frozen=True)
class LoadReport:
    """A load test, complete or interrupted, with what is computed from its turns."""

    test: LoadTest
    objectives: Objectives
    provenance: Mapping[str, Any]

    @cached_property
    def rows(self) -> list[LoadRow]:
        return summarise(self.test.turns, self._names, self.objectives)

    @cached_property
    def ratios(self) -> list[RatioRow]:
        return compare(self.test.turns, self._names, self.objectives, seed=self.test.plan.seed)

    @cached_property
    def messages(self) -> list[str]:
        """Sentences about failures, and about what makes the results less reliable."""
        return messages(self.rows, reports_usage=self.test.reports_usage)

    def to_json(self) -> dict[str, Any]:
        """Settings, provenance, results, and every request with the times of its chunks."""
        test = self.test
        return {
            "schema": SCHEMA,
            "provenance": dict(self.provenance),
            "settings": {
                "contenders": [
                    {
                        "name": each.name,
                        "url": each.server.url,
                        "model": test.models.get(each.server.name),
                        "extra_body": dict(each.extra_body),
                    }
                    for each in test.contenders
                ],
                **asdict(test.options),
                "num_prompts": len(test.plan.items),
                "loads": [level.label for level in test.plan.levels],
                "rounds": test.plan.rounds,
                **asdict(test.plan.length),
                "seed": test.plan.seed,
                "slo_ms": asdict(self.objectives),
            },
            "complete": test.complete,
            "turns_planned": test.num_turns,
            "messages": self.messages,
            "results": [row.to_json() for row in self.rows],
            "ratios": [row.to_json() for row in self.ratios],
            "turns": [turn.to_json() for turn in test.turns],
        }

    def to_markdown(self) -> str:
        lines = [f"# {TITLE}", *([interrupted] if (interrupted := self._interrupted) else [])]
        facts = [f"- {name}: {value}" for name, value in self._facts()]
        pages = [markdown(table, 2) for table in tables(self.rows, self.ratios)]
        return "\n\n".join([*lines, "\n".join(facts), *self.messages, *pages, ABOUT]) + "\n"

    def to_html(self) -> str:
        """The HTML page as text; it loads no other files."""
        return TEMPLATES.get_template("load.html").render(
            title=TITLE,
            interrupted=self._interrupted,
            messages=self.messages,
            chart=plot.svg(chart(self.rows), name="load"),
            tables=tables(self.rows, self.ratios),
            facts=self._facts(),
            notes=ABOUT,
        )

    def write(self, file: Path) -> None:
        """Write a file with one of SUFFIXES; OSError if that fails."""
        if file.suffix == ".json":
            write_json(file, self.to_json())
        elif file.suffix == ".md":
            file.write_text(self.to_markdown(), encoding="utf-8")
        elif file.suffix == ".html":
            file.write_text(self.to_html(), encoding="utf-8")
        else:
            plot.save(chart(self.rows), file)

    @property
    def _names(self) -> list[str]:
        return [contender.name for contender in self.test.contenders]

    @property
    def _interrupted(self) -> str:
        test = self.test
        if test.complete:
            return ""
        made = sum(turn.complete for turn in test.turns)
        return f"Interrupted: {made} of {test.num_turns} turns are complete."

    def _facts(self) -> Sequence[tuple[str, str]]:
        source, test = self.provenance, self.test
        servers = dict.fromkeys(contender.server for contender in test.contenders)
        described = [f"{each.name} at {each.url} with {test.models.get(each.name)}" for each in servers]
        return [
            (
                "Servers",
                ", ".join(described),
            ),
            ("Load generator", f"outpace {source['versions']['outpace']} on a {source['device']}"),
            ("Date", str(source["date"])),
            ("Command", " ".join(map(str, source["argv"]))),
        ]
