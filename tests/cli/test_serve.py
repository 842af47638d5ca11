"""`outpace serve` before it listens; tests/serving/http has the server."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer

from outpace.cli.app import app
from outpace.cli.commands import serve


@pytest.fixture
def started(outpace_: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `outpace serve` with a tiny model up to the point where it would answer requests; returns the
    result, and the server."""
    from outpace.serving.http import server

    found: list[Any] = []

    def run(self: Any, sockets: Any) -> None:
        found.append(self)
        for listener in sockets:
            listener.close()

    monkeypatch.setattr(server.Server, "run", run)

    def start(*arguments: object) -> tuple[Any, Any]:
        given = () if "zoo:target" in arguments else (tiny.target,)
        result = outpace_("serve", "--port", 0, *arguments, *given)
        return result, found.pop() if found else None

    return start


def test_help_fits_a_screen(outpace_: Any) -> None:
    command = typer.main.get_group(app).commands["serve"]
    context = typer.Context(command, info_name="outpace serve", terminal_width=serve.HELP_WIDTH)
    lines = command.get_help(context).splitlines()
    assert len(lines) <= 48 and max(map(len, lines)) <= 100
    assert "--max-ngram" in outpace_("serve", "--method", "prompt-lookup", "--help").stdout


def test_the_page_of_the_server_names_its_options() -> None:
    """Those that it does not share with `outpace generate`, which have pages of their own."""
    commands = typer.main.get_group(app).commands
    own, shared = ({each.opts[-1] for each in commands[name].params} for name in ("serve", "generate"))
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    missing = {option for option in own - shared if option[:2] == "--" and f"`{option}" not in page}
    assert not missing


def test_the_start_names_model_methods_and_address(started: Any, tiny: Any) -> None:
    result, server = started(
        "--methods", "autoregressive,prompt-lookup:depth=4", "--method", "mcsd", "--draft", tiny.draft
    )
    assert result.exit_code == 0, result.output
    assert f"{tiny.target} with mcsd, autoregressive, prompt-lookup at http://127.0.0.1:" in result.stderr
    assert "add --api-key" not in result.stderr and server is not None


def test_a_public_address_without_a_key_is_warned_about(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        "everybody who reaches 0.0.0.0 can use this server: add --api-key"
        in started("--host", "0.0.0.0")[0].stderr
    )
    assert "add --api-key" not in started("--host", "0.0.0.0", "--api-key", "x")[0].stderr
    assert "add --api-key" not in started("--host", "localhost")[0].stderr
    for key in ("", " "):
        result, server = started("--host", "0.0.0.0", "--api-key", key)
        assert result.exit_code == 2 and "an API key is empty: give a key" in result.stderr and server is None
    monkeypatch.setenv("OUTPACE_API_KEY", "one two")
    assert "add --api-key" not in started("--host", "0.0.0.0")[0].stderr


def test_the_default_method_adapts_to_load(started: Any) -> None:
    assert "with auto at" in started("--max-rows", 2)[0].stderr
    assert "with auto at" in started("zoo:target", "--depth", 3)[0].stderr
    assert "with prompt-lookup at" in started("--method", "prompt-lookup", "--depth", 3)[0].stderr


def test_the_prefix_cache_is_on_unless_it_is_switched_off(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outpace.serving.http import service
    from outpace.serving.scheduler import Scheduler

    found: list[bool] = []

    def create(*_: Any, prefix_cache: bool, **options: Any) -> Scheduler:
        found.append(prefix_cache)
        return Scheduler(*_, prefix_cache=prefix_cache, **options)

    monkeypatch.setattr(service, "Scheduler", create)
    assert started()[0].exit_code == started("--no-prefix-cache")[0].exit_code == 0
    assert found == [True, False]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--kv-memory", "much"), "--kv-memory is much; use a size such as 2GiB"),
        (("--kv-memory", "0"), "--kv-memory is 0; use a size such as 2GiB"),
        (("--kv-memory", "1KiB"), "1024 bytes for KV caches hold no prompt, not even one of one token: give"),
        (("--methods", "magic"), "there is no method magic"),
        (("--methods", "prompt-lookup:width=4"), "no option of prompt-lookup called width"),
        (("--methods", "block-verification", "--method", "prompt-lookup"), "needs draft"),
        (("--max-model-len", "100000"), "--max-model-len is 100000, but the model reads at most"),
        (("--override-generation-config", "0.5"), "--override-generation-config is 0.5; use JSON such as"),
        (("--override-generation-config", '{"heat": 1}'), "heat is no sampling default that can be set: use"),
        (("--override-generation-config", '{"top_p": "x"}'), "top_p is 'x'; use a number"),
        (("--override-generation-config", '{"num_beams": 2}'), "num_beams is no sampling default"),
        (("--allowed-origins", "*"), "--allowed-origins is *; use JSON such as"),
        (("--chat-template", "none.jinja"), "none.jinja cannot be read"),
        (("--host", "no such host"), "cannot be listened on"),
        (("--target", "x"), "there is no option --target: use the model as an argument"),
        (("--model", "x"), "there is no option --model: use the model as an argument"),
    ],
)
def test_wrong_options_are_named(started: Any, arguments: tuple[str, ...], sentence: str) -> None:
    result, server = started(*arguments)
    assert result.exit_code == 2 and server is None
    assert sentence in " ".join(result.stderr.split()) and "Traceback" not in result.output


def test_a_server_that_is_to_be_exact_refuses_a_lossy_method(started: Any, tiny: Any) -> None:
    lossy = ("--method", "scd", "--draft", tiny.draft)
    result, server = started("--exact", *lossy)
    assert result.exit_code == 2 and server is None
    sentence = "scd is LOSSY with these options: give beta=0.0, alpha=0.0, which makes it EXACT, or choose"
    assert sentence in " ".join(result.stderr.split())
    result, server = started("--exact", *lossy, "--beta", 0, "--alpha", 0)
    assert result.exit_code == 0 and server is not None and "LOSSY" not in result.stderr
    assert started("--exact")[0].exit_code == 0
    result, server = started(*lossy)
    assert server is not None and "scd is LOSSY: the texts are those of" in result.stderr


def test_requests_are_refused_while_the_model_is_loaded(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outpace.serving import methods

    listen, open_methods, found = serve._listen, methods.open_methods, list[Any]()

    def remembered(*arguments: Any) -> socket.socket:
        found.append(listen(*arguments))
        return found[0]

    def asked(*arguments: Any, **options: Any) -> Any:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{found[0].getsockname()[1]}/health", timeout=60)
        found.append(refused.value.code)
        return open_methods(*arguments, **options)

    monkeypatch.setattr(serve, "_listen", remembered)
    monkeypatch.setattr(methods, "open_methods", asked)
    result, server = started()
    assert result.exit_code == 0 and server is not None and found[1] == 503


def test_the_access_log_is_off_unless_it_is_switched_on(started: Any) -> None:
    assert not started()[1].config.access_log
    assert started("--access-log")[1].config.access_log


def test_a_port_in_use_is_named(started: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result, _ = started("--port", taken.getsockname()[1])
    assert result.exit_code == 2 and "choose another --port or --host" in result.stderr


def test_connections_send_small_pieces_at_once() -> None:
    with serve._listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("500MB", 500_000_000), ("1024", 1024), (None, None)]
)
def test_sizes(text: str | None, size: int | None) -> None:
    assert serve._size(text) == size


def test_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert serve._address("::1", listener) == f"http://[::1]:{port}"
    assert [serve._is_local(host) for host in ("::1", "127.0.0.9", "localhost", "0.0.0.0", "x.org")] == [
        True,
        True,
        True,
        False,
        False,
    ]
