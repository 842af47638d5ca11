"""The pages of `outpace plan` and `outpace bench`: in headless Chromium, on a desktop and on a phone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outpace.page.line_chart import line_chart, point_chart
from outpace.plan.plan import Plan
from outpace.plan.report import to_html, to_json
from tests.bench.test_report_page import measured
from tests.plan.test_prediction import SIZE, SMALL, on_device
from tests.tiers import only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
WINDOWS = {"desktop": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 780}}


def plan() -> Plan:
    """Two methods, one of them with a name that must be escaped."""
    made = on_device(SIZE, SMALL, [0.7] * 6)
    other = replace(made.methods[0], name="other <b>", ranks=(0.7, 0.1))
    source = {"device": "a CPU", "threads": 1, "commit": None, "date": "today", "argv": ["outpace", "plan"]}
    return replace(made, methods=[*made.methods, other], provenance=source, assumed=["nothing."])


def bench_page() -> str:
    from outpace.bench.report.html import to_html as bench_to_html

    found = measured()
    return bench_to_html(found, found.rows())


PAGES = {"plan": lambda: to_html(plan()), "bench": bench_page}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_to_do_before_all_else_and_loads_nothing(page: str) -> None:
    text = PAGES[page]()
    body = text[text.index("<body>") :]
    first = body.index("<h1>Recommendation: ")
    rest = [body.index(each) for each in ("<figure", "<table", "<details")]
    assert [first, *rest] == sorted([first, *rest])
    assert not re.search(r"<(link|script|img|iframe)\b|@import|url\(|src=", text)
    assert "@media print" in text and "prefers-color-scheme: dark" in text


def test_the_values_of_the_page_are_those_of_the_json() -> None:
    made = plan()
    text, data = to_html(made), to_json(made)
    assert f"<h1>Recommendation: {escape(data['recommendation'])}</h1>" in text
    cells = re.findall(r"<td>([^<]*)</td>", text[text.index("<table") : text.index("</table>")])
    shown = [cell.partition(" (")[0] for cell in cells if "(" in cell]
    assert shown == [f"{each['speedup']:.2f}" for each in data["results"]]
    assert cells[-2:] == [str(data["pays_up_to_batch"][method.name]) for method in made.methods]
    assert "other &lt;b&gt;" in text and "<b>" not in text


def test_a_chart_has_its_points_where_their_values_are() -> None:
    chart = line_chart({"a": {1: 2.0, 4: 1.0}, "b": {1: 0.5, 2: 0.5, 4: 0.5}})
    assert chart.lines[0].points == [(0.0, 100.0), (100.0, 50.0)] and chart.reference == 50.0
    assert chart.lines[1].points == [(0.0, 25.0), (50.0, 25.0), (100.0, 25.0)]
    assert chart.lines[0].path == "0.00,0.00 100.00,50.00"
    assert chart.x_labels == [(0.0, "1"), (50.0, "2"), (100.0, "4")]
    assert [text for _, text in chart.y_labels] == ["0x", "0.5x", "1x", "1.5x", "2x"]
    assert line_chart({"a": {3: 1.0}}).lines[0].points[0][0] == 50.0
    with pytest.raises(ValueError, match="at least one value"):
        line_chart({})


def test_points_stand_anywhere_and_are_joined_in_their_order() -> None:
    chart = point_chart({"a": [(0.5, 2.0, "x=1"), (-0.5, 1.0, "")], "b": [(0.0, 0.5, "")]})
    assert [text for _, text in chart.x_labels] == ["-0.6", "-0.4", "-0.2", "0", "0.2", "0.4", "0.6"]
    assert [at for at, _ in chart.x_labels] == pytest.approx([100 * index / 6 for index in range(7)])
    assert chart.lines[0].points == [(pytest.approx(550 / 6), 100.0), (pytest.approx(50 / 6), 50.0)]
    assert chart.lines[0].notes == [(pytest.approx(550 / 6), 100.0, "x=1")]
    assert chart.lines[1].points == [(pytest.approx(50.0), 25.0)] and chart.reference == 50.0
    only = point_chart({"a": [(0.0, 1.0, "")]})
    assert only.x_labels == [(0.0, "0"), (100.0, "1")] and only.lines[0].points[0][0] == 0.0
    assert [text for _, text in point_chart({"a": [(0.013, 1.0, "")]}).x_labels][-1] == "0.014"
    with pytest.raises(ValueError, match="at least one point"):
        point_chart({})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: Browser, tmp_path: Path, page: str, window: str) -> Page:
    file = tmp_path / f"{page}.html"
    file.write_text(PAGES[page](), encoding="utf-8")
    found = browser.new_page(viewport=WINDOWS[window])
    requests: list[str] = []
    found.on("request", lambda request: requests.append(request.url))
    found.goto(file.as_uri())
    assert requests == [file.as_uri()]
    return found


@pytest.mark.parametrize("window", only(["phone"], WINDOWS))
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_its_window(browser: Browser, tmp_path: Path, page: str, window: str) -> None:
    found = opened(browser, tmp_path, page, window)
    width = WINDOWS[window]["width"]
    assert found.evaluate("document.documentElement.scrollWidth") == width
    for summary in found.locator("summary").all():
        summary.click()
    assert found.evaluate("document.documentElement.scrollWidth") == width
    box = found.locator("h1").bounding_box()
    assert box is not None and box["y"] < 100 and box["y"] + box["height"] < WINDOWS[window]["height"] / 2
    found.close()


@pytest.mark.parametrize("page", PAGES)
def test_on_paper_nothing_stays_folded(browser: Browser, tmp_path: Path, page: str) -> None:
    found = opened(browser, tmp_path, page, "desktop")
    found.emulate_media(media="print")
    tables = found.locator("details table")
    assert tables.count() > 0
    tall = "(all) => all.every((each) => each.getBoundingClientRect().height > 10)"
    assert tables.evaluate_all(tall)
    found.close()
