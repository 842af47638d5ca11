"""Servers that cannot be audited, and options that do not go together: one sentence each."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from outpace.audit.endpoint import MAX_RETRIES, Endpoint, EndpointError, address
from tests.audit.stub import TOKENIZER, Stub, served
from tests.tiers import only

Reply = Callable[[dict[str, Any], Any], Any]


WHOLE = ("--endpoint", "http://localhost:1", "--model", "m", "--reference", "r")


def run(url: str, reference: str, *more: str, model: str = "stub") -> Any:
    from outpace.cli.app import app

    given = ["--endpoint", url, "--model", model, "--reference", reference, "--max-requests", "20", *more]
    return CliRunner().invoke(app, ["audit", *given])


def fails(result: Any, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("outpace: "), result.stderr
    for word in words:
        assert word in last
    assert "Traceback" not in result.output


def hang(asked: dict[str, Any], handler: Any) -> None:
    time.sleep(3)
    handler.send({})


def trickle(asked: dict[str, Any], handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(30):
            handler.wfile.write(b" ")
            time.sleep(0.1)
    except OSError:
        pass
    handler.close_connection = True


BROKEN: dict[str, tuple[Reply, tuple[str, ...]]] = {
    "hangs": (hang, ("did not answer within 1 s",)),
    "trickles": (trickle, ("1 s",)),
    "HTML": (lambda asked, handler: handler.send(b"<html>hello</html>"), ("no JSON object", "<html>")),
    "garbage": (lambda asked, handler: handler.send(b"data: \xff\xfe{"), ("no JSON object",)),
    "a list": (lambda asked, handler: [1], ("no JSON object",)),
    "no choices": (lambda asked, handler: {"choices": []}, ("another form",)),
    "no text": (lambda asked, handler: {"choices": [{"text": None}]}, ("another form",)),
    "needs a key": (lambda asked, handler: handler.send({}, 401), ("OPENAI_API_KEY",)),
    "no route": (lambda asked, handler: handler.send({}, 404), ("does not exist", "/v1")),
    "fails": (lambda asked, handler: handler.send({"error": {"message": "no GPU"}}, 500), ("500", "no GPU")),
    "refuses": (lambda asked, handler: handler.send({"error": {"message": "never"}}, 400), ("never",)),
    "is busy": (
        lambda asked, handler: handler.send({}, 429, Retry_After="0"),
        ("limits requests", f"{MAX_RETRIES + 1} attempts"),
    ),
    "is busy for an hour": (
        lambda asked, handler: handler.send({}, 429, Retry_After="3600"),
        ("limits requests", "1 attempts"),
    ),
}


@pytest.mark.parametrize("case", only(set(BROKEN) - {"trickles"}, BROKEN))
def test_a_broken_server_is_one_sentence(case: str, tiny: Any) -> None:
    reply, words = BROKEN[case]
    with served(reply) as url:
        fails(run(url, tiny.target, "--max-seconds", "1" if "1 s" in words[0] else "60"), *words)


def test_a_server_that_is_not_there(tiny: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    fails(run(url, tiny.target), "cannot be reached", "is the server running?")


def test_an_unknown_model(tiny: Any) -> None:
    with served(lambda asked, handler: None) as url:
        fails(run(url, tiny.target, model="other"), "there is no model 'other'", "use stub")


def test_a_reference_with_another_tokenizer(tiny: Any) -> None:
    stub = Stub()
    with served(lambda asked, handler: stub.answer(asked)) as url:
        fails(run(url, tiny.lookalike), "nothing was tested", "another tokenizer")


def test_a_server_that_reads_other_tokens(tiny: Any) -> None:
    def reply(asked: dict[str, Any], handler: Any) -> Any:
        return {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 1}}

    with served(reply) as url:
        fails(run(url, tiny.target), "reads 1 tokens where the reference reads", "another tokenizer")


def test_a_server_that_limits_requests_is_waited_for() -> None:
    counts = {"busy": 3}

    def reply(asked: dict[str, Any], handler: Any) -> Any:
        if counts["busy"]:
            counts["busy"] -= 1
            return handler.send({}, 429, Retry_After="0.01")
        return {"choices": [{"text": "x"}]}

    with served(reply) as url:
        server = Endpoint(url, "stub")
        assert server.complete("a", 1).text == "x" and server.num_waits == 3
        server.close()


@pytest.mark.parametrize("field", ["logprobs", "return_token_ids", "seed", "top_k"])
def test_a_field_that_is_refused_is_left_out(field: str, tiny: Any) -> None:
    stub = Stub()

    def reply(asked: dict[str, Any], handler: Any) -> Any:
        if field in asked:
            return handler.send({"error": {"message": f"{field} is unknown"}}, 400)
        return stub.answer(asked)

    with served(reply) as url:
        result = run(url, tiny.target, "--json", "--max-tokens", "4")
    found = json.loads(result.stdout)
    assert list(found["refused"]) == ["top_k, min_p and repetition_penalty" if field == "top_k" else field]
    if field == "logprobs":
        [check] = [each for each in found["checks"] if each["name"] == "log probabilities"]
        assert check["verdict"] == "not tested" and "is unknown" in check["detail"]


def test_prompts_as_text_where_token_ids_are_refused(tiny: Any) -> None:
    stub = Stub()

    def reply(asked: dict[str, Any], handler: Any) -> Any:
        if not isinstance(asked["prompt"], str):
            return handler.send({"error": {"message": "prompt must be a string"}}, 422)
        return stub.answer(asked | {"prompt": TOKENIZER(asked["prompt"])["input_ids"]})

    with served(reply) as url:
        result = run(url, tiny.target, "--json", "--max-tokens", "4")
    assert json.loads(result.stdout)["num_requests"] > 5


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://localhost", "no address of a server"),
        ("http://", "no address of a server"),
        ("http://localhost:99999/v1", "no address of a server"),
        ("http://example.org/v1", "--allow-remote"),
        ("http://192.168.0.1:8000/v1", "--allow-remote"),
    ],
)
def test_addresses(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        address(url, False, "--endpoint")


def test_addresses_that_are_right() -> None:
    for given, found in {
        "http://localhost:8000": "http://localhost:8000/v1",
        "localhost:8000/v1/": "http://localhost:8000/v1",
        "http://127.0.0.2:1/api": "http://127.0.0.2:1/api",
        "http://[::1]:8000/v1": "http://[::1]:8000/v1",
    }.items():
        assert address(given, False, "--endpoint") == found
    assert address("https://example.org/v1", True, "--endpoint") == "https://example.org/v1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--endpoint", "http://localhost:1"), "--model"),
        (("--endpoint", "http://localhost:1", "--model", "m"), "--reference"),
        (("--model", "m"), "add --endpoint"),
        (("--api-key", "k"), "add --endpoint"),
        ((*WHOLE, "--max-tokens", "0"), "at least one token"),
        ((*WHOLE, "--false-alarms", "2"), "between 0 and 1"),
        (WHOLE, "cannot be reached"),
        ((*WHOLE[:-1], "http://localhost:2", "--threads", "1"), "is loaded, not for a server"),
        (("mcsd", "--endpoint", "http://localhost:1"), "methods is for audits of our own methods"),
        (("--all", "--endpoint", "http://localhost:1"), "--all is for audits"),
        (("--samples", "9", "--endpoint", "http://localhost:1"), "--samples is for audits"),
    ],
)
def test_options_that_do_not_go_together(given: tuple[str, ...], words: str) -> None:
    from outpace.cli.app import app

    fails(CliRunner().invoke(app, ["audit", *given]), words)


def test_a_key_is_sent() -> None:
    seen: list[str] = []

    def reply(asked: dict[str, Any], handler: Any) -> Any:
        seen.append(handler.headers["Authorization"])
        return {"choices": [{"text": "x"}]}

    with served(reply) as url:
        server = Endpoint(url, "stub", "secret")
        server.complete("a", 1)
        server.close()
    assert seen == ["Bearer secret"]


def test_lists_of_different_lengths() -> None:
    logs = {"tokens": ["a"], "token_logprobs": [-1.0, -2.0]}
    with served(lambda asked, handler: {"choices": [{"text": "x", "logprobs": logs}]}) as url:
        server = Endpoint(url, "stub")
        with pytest.raises(EndpointError, match="different lengths"):
            server.complete("a", 1)
        server.close()
