"""`outpace load` against stub servers: results, failures, interruption, messages."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.load.stub_server import Answer


def results(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def error_message(result, code: int) -> str:
    """The one line on the error stream that says why the command ended."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    [line] = [line for line in result.stderr.splitlines() if line.startswith("outpace: ")]
    return line


def bodies(stub) -> list[dict]:
    """What the stub was sent in the turns, in the order of the seeds."""
    return sorted((body for _, body in stub.requests[1:]), key=lambda body: body["seed"])


def test_the_json_has_everything(load, stub):
    stub.accepted = (1, 1)
    arguments = ("--concurrency", 2, "--rounds", 2, "--slo-ttft", 1e6, "--slo-itl", 1e6)
    found = results(load(stub.url, *arguments, "--json"))
    assert found["schema"] == "outpace-load/1" and found["complete"] and found["provenance"]["date"]
    settings = found["settings"]
    assert settings["contenders"] == [
        {"name": stub.url[7:], "url": f"{stub.url}/v1", "model": "stub", "extra_body": {}}
    ]
    assert (settings["loads"], settings["rounds"], settings["num_requests"]) == (
        ["1000 requests/s", "2 streams"],
        2,
        4,
    )
    assert settings["slo_ms"] == {"time_to_first_token": 1e6, "inter_token_latency": 1e6}
    for row, load_label in zip(found["results"], settings["loads"], strict=True):
        assert (row["load"], row["requests"], row["failed"], row["failures"]) == (load_label, 8, 0, {})
        for latency in (
            "time_to_first_token",
            "inter_token_latency",
            "time_per_output_token",
            "latency",
            "delay",
        ):
            assert row[f"{latency}_ms"].keys() == {"p50", "p95", "p99"}
        assert row["requests_per_second"] == row["goodput"] > 0
        assert row["output_tokens_per_second"] == pytest.approx(3 * row["requests_per_second"])
        assert (row["tokens_per_request"], row["tokens_per_chunk"]) == (3.0, 1.5)
        assert row["speculation"] == {
            "drafts": 16,
            "draft_tokens": 32,
            "accepted_tokens": 16,
            "acceptance_rate": 0.5,
            "mean_acceptance_length": 2.0,
            "acceptance_by_position": [0.5, 0.5],
        }
    assert found["ratios"] == []
    assert [(turn["load"], turn["round"]) for turn in found["turns"]] == [
        (load_label, number) for number in (0, 1) for load_label in settings["loads"]
    ]
    for turn in found["turns"]:
        assert turn["complete"] and turn["seconds"] > 0 and len(turn["requests"]) == 4
        for request in turn["requests"]:
            assert len(request["chunks_ms"]) == 2 and request["latency_ms"] >= request["chunks_ms"][-1]
            assert (request["prompt_tokens"], request["output_tokens"], request["error"]) == (5, 3, None)


def test_requests_have_the_fields_of_the_options(load, stub):
    options = ("--max-tokens", 7, "--temperature", 0.5, "--ignore-eos", "--seed", 11, "--prompts", "edit")
    results(load(stub.url, *options, "--model", "other", "--json"))
    path, body = stub.requests[0]
    assert path == "/v1/chat/completions"
    [message] = body.pop("messages")
    assert message["role"] == "user" and message["content"]
    assert body == {
        "model": "other",
        "max_tokens": 7,
        "temperature": 0.5,
        "seed": 11,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_completions_take_texts(load, stub, tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"prompt": "def add"}\n')
    results(load(stub.url, "--endpoint", "completions", "--prompts", "mine.jsonl", "--json"))
    path, body = stub.requests[-1]
    assert path == "/v1/completions" and body["prompt"] == "def add" and "ignore_eos" not in body


def test_servers_get_the_same_requests_in_turns(load, start_stub):
    one, two = start_stub(), start_stub()
    two.model = "second"
    arguments = ("--url", f"one={one.url}", "--url", f"two={two.url}", "--rounds", 3, "--json")
    found = results(load(*arguments))
    assert len(one.requests) == len(two.requests) == 1 + 3 * 4
    for ours, theirs in zip(bodies(one), bodies(two), strict=True):
        assert {**ours, "model": ""} == {**theirs, "model": ""}
        assert (ours["model"], theirs["model"]) == ("stub", "second")
    firsts = [turn["contender"] for turn in found["turns"][::2]]
    assert set(firsts) == {"one", "two"}
    arrivals: dict[int, set] = {}
    for turn in found["turns"]:
        planned = tuple((each["prompt"], each["arrival_seconds"]) for each in turn["requests"])
        arrivals.setdefault(turn["round"], set()).add(frozenset(planned))
    assert [len(each) for each in arrivals.values()] == [1, 1, 1]
    [ratio] = found["ratios"]
    assert (ratio["contender"], ratio["reference"], ratio["rounds"]) == ("two", "one", 3)
    assert ratio["ratios"]["latency"].keys() == {"median", "low", "high"}


def test_settings_of_one_server_are_compared(load, stub):
    settings = ("--extra-body", "off={}", "--extra-body", 'on={"speculate": {"depth": 3}, "temperature": 1}')
    found = results(load(stub.url, *settings, "--json"))
    assert [row["contender"] for row in found["results"]] == ["off", "on"]
    speculating = [body for _, body in stub.requests if "speculate" in body]
    assert len(speculating) == 1 + 4 and all(body["temperature"] == 1 for body in speculating)


def test_tables_on_the_terminal(load, stub):
    stub.accepted = (1,)
    shown = load(stub.url, "--concurrency", "1,2")
    assert shown.exit_code == 0, shown.output
    for words in ("time to first token", "goodput", "1000 requests/s", "2 streams", "mean acceptance length"):
        assert words in shown.stdout
    assert shown.stderr == "40 prompts, 3 turns\n"


def test_failures_are_counted_and_do_not_end_the_run(load, stub):
    answers = {
        2: Answer(status=503),
        4: Answer(done=False),
        5: Answer(extra='{"error": {"message": "out of memory"}}'),
        6: Answer(texts=()),
    }
    stub.answer = lambda number: answers.get(number, Answer())
    shown = load(stub.url, "--num-requests", 8, "--json")
    [row] = results(shown)["results"]
    assert (row["requests"], row["failed"]) == (8, 4)
    assert row["failures"] == {
        "HTTP 503 Service Unavailable: the stub refuses": 1,
        "the stream broke off without [DONE]": 1,
        "out of memory": 1,
        "the stream has no text": 1,
    }
    assert "4 of 8 requests failed: " in shown.stderr


def test_a_turn_does_not_collect_the_objects_of_libraries(load, stub):
    counts: list[int] = []

    def answer(number: int) -> Answer:
        counts.append(gc.get_freeze_count())
        return Answer()

    stub.answer = answer
    results(load(stub.url, "--json"))
    first, *turn = counts
    assert first == 0 and min(turn) > 0 and gc.get_freeze_count() == 0


def test_a_run_without_any_answer_fails(load, stub):
    stub.answer = lambda number: Answer(status=200 if number == 0 else 500)
    assert error_message(load(stub.url), 1) == "outpace: no request succeeded"


def test_a_server_without_usage(load, stub):
    stub.answer = lambda number: Answer(tokens=None)
    shown = load(stub.url, "--json")
    [row] = results(shown)["results"]
    assert row["output_tokens_per_second"] is None and row["time_per_output_token_ms"] is None
    assert row["time_to_first_token_ms"]["p50"] > 0 and "include_usage" in shown.stderr


COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
from outpace.cli import main
sys.exit(main())
"""


@pytest.mark.slow
def test_ctrl_c_prints_what_there_is(stub, tmp_path):
    started = threading.Event()

    def answer(number: int) -> Answer:
        if number == 6:  # the second request of the second turn
            started.wait()
            process.send_signal(signal.SIGINT)
            return Answer(stall=True)
        return Answer()

    stub.answer = answer
    options = "--concurrency 1 --num-requests 4 --rounds 3 --json --output out.json".split()
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "load", stub.url, *options],
        cwd=tmp_path,
        env=os.environ | {"NO_PROXY": "127.0.0.1", "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.set()
    output, errors = process.communicate()
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert "outpace: interrupted after 5 requests" in errors.splitlines()
    found = json.loads(output)
    assert not found["complete"] and found["results"][0]["requests"] == 5
    assert [(turn["complete"], len(turn["requests"])) for turn in found["turns"]] == [(True, 4), (False, 1)]
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["turns"] == found["turns"]


def test_the_key_is_sent_and_not_saved(load, stub, monkeypatch):
    stub.key = "secret-key"
    arguments = ["outpace", "load", stub.url, "--api-key", stub.key, f"--api-key={stub.key}"]
    monkeypatch.setattr("sys.argv", arguments)
    shown = load(stub.url, "--api-key", stub.key, "--json")
    assert results(shown)["provenance"]["argv"][-3:] == ["--api-key", "***", "--api-key=***"]
    assert stub.key not in shown.output
    monkeypatch.setenv("OUTPACE_API_KEY", stub.key)
    assert results(load(stub.url, "--json"))["complete"]


def test_files(load, stub, tmp_path):
    pytest.importorskip("matplotlib")
    shown = load(stub.url, "--output", "out", "--output", "chart.png")
    assert shown.exit_code == 0, shown.output
    written = {
        path.name: path.read_bytes() for path in [*(tmp_path / "out").iterdir(), tmp_path / "chart.png"]
    }
    assert written.keys() == {"load.json", "load.md", "load.html", "load.svg", "chart.png"}
    assert json.loads(written["load.json"])["complete"]
    assert written["chart.png"].startswith(b"\x89PNG") and b"<svg" in written["load.svg"]
    for words in ("Time to first token, ms", "Throughput", "How it was measured", stub.url):
        assert words in written["load.html"].decode()
    assert "## Throughput" in written["load.md"].decode()


def test_a_server_that_wants_a_key(load, stub):
    stub.key = "secret"
    sentence = error_message(load(stub.url), 2)
    assert (
        "HTTP 401" in sentence and "wrong key" in sentence and "--api-key or in OUTPACE_API_KEY" in sentence
    )
    assert "HTTP 401" in error_message(load(stub.url, "--model", "stub", "--api-key", "other"), 2)


def test_a_wrong_path(load, stub):
    for arguments in ((f"{stub.url}/v2",), (f"{stub.url}/v2", "--model", "stub")):
        sentence = error_message(load(*arguments), 2)
        assert "HTTP 404" in sentence and "give its URL up to /v1" in sentence


def test_no_server(load, stub):
    stub.close()
    for arguments in ((stub.url,), (stub.url, "--model", "stub")):
        sentence = error_message(load(*arguments), 1)
        assert f"no server answers at {stub.url}/v1/" in sentence and "start it" in sentence


def test_a_server_that_does_not_stream(load, stub):
    stub.answer = lambda number: Answer(content_type="text/html")
    sentence = error_message(load(stub.url), 2)
    assert "does not stream an answer" in sentence and "text/html" in sentence


@pytest.mark.parametrize(("status", "fix"), [(400, "change the options"), (500, "its log should say why")])
def test_a_request_that_the_server_refuses(load, stub, status, fix):
    stub.answer = lambda number: Answer(status=status)
    sentence = error_message(load(stub.url), 2)
    assert f"HTTP {status}" in sentence and "the stub refuses" in sentence and fix in sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "there is no server to load: give its URL, such as http://localhost:8000/v1"),
        (("localhost",), "'localhost' is not the URL of a server"),
        (("http://h", "--rates", "x"), "--rates takes numbers separated by commas"),
        (("http://h", "--rounds", 0), "--rounds is 0: give a positive number"),
        (("http://h", "--timeout", -1), "--timeout is -1.0: give a positive number"),
        (("http://h", "--seconds", 3), "give one of --num-requests and --seconds"),
        (("http://h", "--seed", -1), "--seed and --temperature are 0 or positive"),
        (("http://h", "--prompts", "none.jsonl"), "no prompts called 'none.jsonl'"),
        (("http://h", "--prompts", "edit", "--endpoint", "completions"), "use --endpoint chat"),
        (("http://h", "--output", "x.txt"), "x.txt cannot be written: use a name that ends with .json"),
        (("http://h", "--extra-body", "x"), "--extra-body takes NAME=JSON"),
    ],
)
def test_bad_input_gives_one_sentence_and_exit_code_2(load, arguments, sentence):
    assert sentence in error_message(load(*arguments), 2)


def test_the_help_fits_a_screen():
    from typer.testing import CliRunner

    from outpace.cli.app import app

    lines = CliRunner().invoke(app, ["load", "--help"]).output.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
