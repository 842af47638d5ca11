"""What Prometheus and Grafana get from `deploy`, and the docs, name metrics that a running server has."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import ROOT
from tests.deploy.promql import parse, problems

PROMETHEUS = ROOT / "deploy" / "prometheus.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES: dict[str, dict[str, Any]] = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
IN_DOCS = re.compile(r"`(outpace_\w+|vllm:\w+)`")


@pytest.fixture(scope="module")
def exposed(container: Any) -> dict[str, set[str]]:
    """The labels of each metric of the server, which has given an answer and refused a request."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{container.url}/metrics", timeout=60) as response:
        text = response.read().decode()
    families = text_string_to_metric_families(text)
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.slow
def test_every_metric_of_the_dashboard_is_one_of_the_server(exposed: dict[str, set[str]]) -> None:
    wrong = {expression: found for expression in EXPRESSIONS if (found := problems(expression, exposed))}
    assert not wrong


@pytest.mark.slow
def test_the_dashboard_chooses_servers_by_a_metric_that_each_has(exposed: dict[str, set[str]]) -> None:
    query = VARIABLES["instance"]["query"]["query"]
    match = re.fullmatch(r"label_values\((\w+), instance\)", query)
    assert match and match[1] in exposed and VARIABLES["instance"]["definition"] == query
    selected = [labels for expression in EXPRESSIONS for _, labels in parse(expression).metrics]
    assert selected and all("instance" in labels for labels in selected)


@pytest.mark.slow
def test_every_metric_in_the_docs_is_one_of_the_server(exposed: dict[str, set[str]]) -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {name: page.name for page in pages for name in IN_DOCS.findall(page.read_text(encoding="utf-8"))}
    assert {"deploy.md", "serving.md"} <= set(named.values())
    assert not {name: page for name, page in named.items() if name not in exposed}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ('sum(rate(outpace_draft_token_total{instance="a"}[5m]))', "no metric outpace_draft_token_total"),
        ("outpace_requests", "no metric outpace_requests"),  # a counter's name ends in _total
        ('sum(outpace_requests_total{result="stop"})', "outpace_requests_total has no label result"),
        ("sum by (result) (rate(outpace_requests_total[5m]))", "no metric has the label result"),
        ("sum by (le) (outpace_requests_running)", "no metric has the label le"),
        ("rates(outpace_requests_total[5m])", "no function is called rates"),
        ("sum(rate(outpace_requests_total[5m])", "a bracket is not closed"),
        ("sum(outpace_requests_total}", "a bracket closes that was not opened"),
        ("rate(outpace_requests_total[5m)", "this is no PromQL"),
        ("1 + 2", "names no metric"),
    ],
)
def test_mistakes_are_found(exposed: dict[str, set[str]], expression: str, problem: str) -> None:
    [found] = problems(expression, exposed)
    assert problem in found


def test_the_names_in_an_expression_are_found() -> None:
    found = parse(
        'sum by (outcome) (rate(a_total{x=~"$y(", z!="}"}[$__rate_interval])) / on () group_left () 2 * b'
    )
    assert found.metrics == [("a_total", {"x", "z"}), ("b", set())]
    assert (found.functions, found.labels) == ({"sum", "rate"}, {"outcome"})


def test_grafana_finds_a_panel_under_one_number_and_all_data_in_one_source() -> None:
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers) > 10
    chosen = VARIABLES["datasource"]
    assert (chosen["type"], chosen["query"]) == ("datasource", "prometheus")
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert VARIABLES["instance"]["datasource"] == source
    for panel in PANELS:
        assert panel["type"] == "timeseries" and panel["title"] and panel["description"]
        assert panel["targets"] and panel["datasource"] == source
        assert all(target["datasource"] == source and target["legendFormat"] for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
    assert set(re.findall(r"\$(\w+)", " ".join(EXPRESSIONS))) == {"instance", "__rate_interval"}


def test_panels_do_not_overlap() -> None:
    squares = [
        (x, y)
        for place in (panel["gridPos"] for panel in PANELS)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(squares)) == len(squares) and max(x for x, _ in squares) < 24


@pytest.mark.slow
def test_prometheus_asks_where_the_server_answers_without_a_key(container: Any) -> None:
    [job] = yaml.safe_load(PROMETHEUS.read_text(encoding="utf-8"))["scrape_configs"]
    assert job.keys() == {"job_name", "static_configs"}  # the path is /metrics unless named; no key is sent
    assert job["static_configs"] == [{"targets": ["localhost:8000"]}]
    with urllib.request.urlopen(f"{container.url}/metrics", timeout=60) as response:
        assert response.status == 200


@pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus is not installed")
def test_promtool_accepts_the_configuration() -> None:
    command = ["promtool", "check", "config", str(PROMETHEUS)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture
def prometheus(container: Any, tmp_path: Path) -> Iterator[str]:
    """Address of a Prometheus with the configuration, which scrapes the server every second."""
    text = PROMETHEUS.read_text(encoding="utf-8").replace("15s", "1s")
    text = text.replace("localhost:8000", container.url.removeprefix("http://"))
    (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command.append(f"--web.listen-address={address}")
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed")
def test_prometheus_has_an_answer_to_every_expression(prometheus: str) -> None:
    def answer(expression: str) -> list[Any]:
        text = expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
        query = urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=60) as response:
            return json.loads(response.read())["data"]["result"]

    def without_answer() -> list[str]:
        try:
            return [expression for expression in EXPRESSIONS if not answer(expression)]
        except urllib.error.URLError as error:  # it has not started, or refuses an expression
            return [str(error)]

    end = time.monotonic() + 60
    while missing := without_answer():
        assert time.monotonic() < end, missing
        time.sleep(1)
