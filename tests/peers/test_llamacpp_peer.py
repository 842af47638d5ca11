"""llama.cpp as a peer: its command line, its answers and failures, and the GGUF files that are made for it.

The server is a stub; with the variable LLAMA_SERVER set to the path of a real one, the last test runs it."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import gguf_models
from benchmarks.peers.environments import PEER_ENGINES, PeerEnvironment, find_environments, find_program
from benchmarks.peers.gguf_models import converted, converter
from benchmarks.peers.rows import CONVERTERS, PeerLauncher, peer_rows
from benchmarks.peers.worker import PeerFailed, PeerRefused, Worker, environment_of

ENGINE = PEER_ENGINES["llamacpp"]
WORKER: dict[str, Any] = runpy.run_path(str(ENGINE.script))
STUB = Path(__file__).parent / "llama_server_stub.py"
SETTINGS: dict[str, Any] = {
    "mode": "plain",
    "target": "target.gguf",
    "draft": "draft.gguf",
    "depth": None,
    "max_ngram": None,
    "type": None,
    "p_min": None,
    "threads": 2,
    "needed_tokens": 100,
    "batch": 1,
    "dtype": "bfloat16",
}
REQUEST: dict[str, Any] = {
    "prompts": [[8, 9, 10]],
    "max_tokens": 5,
    "temperature": 0.0,
    "seeds": [3],
    "stop": [],
    "settings": {},
}


@pytest.fixture
def server(tmp_path: Path) -> str:
    """The stub as a program."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    program.chmod(0o755)
    return str(program)


def started(server: str, settings: Mapping[str, Any], fails: str = "") -> Worker:
    environment = environment_of({**os.environ, "STUB_FAILS": fails}, 1, own=True)
    return Worker(sys.executable, ENGINE.script, {**SETTINGS, "program": server, **settings}, environment)


def test_the_command_line_names_models_threads_and_the_way_of_decoding() -> None:
    def words(**settings: Any) -> str:
        return " ".join(WORKER["arguments"]({**SETTINGS, "program": "llama-server", **settings}, 8080))

    plain = words(batch=2)
    assert "--model target.gguf" in plain and "--threads 2 --threads-batch 2 --parallel 2" in plain
    assert "--ctx-size 328" in plain and "--spec" not in plain and "draft" not in plain
    draft = words(mode="draft", depth=5)
    assert "--model-draft draft.gguf --spec-draft-n-max 5" in draft and "p-min" not in draft
    assert draft.endswith("--spec-type draft-simple")
    assert "--spec-draft-p-min 0.75" in words(mode="draft", depth=5, p_min=0.75)
    either = words(mode="draft", depth=5, type="ngram-simple")
    assert either.endswith(
        "--spec-type ngram-simple,draft-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 5"
    )
    lookup = words(mode="prompt-lookup", depth=10, max_ngram=3, type="ngram-map-k")
    assert lookup.endswith("--spec-type ngram-map-k --spec-ngram-map-k-size-n 3 --spec-ngram-map-k-size-m 10")


def test_only_samplers_that_are_asked_for_run_and_the_temperature_comes_before_limits() -> None:
    request = {**REQUEST, "temperature": 0.7, "settings": {"top_k": 5, "repetition_penalty": 1.2}}
    body = WORKER["body"](request, [1], 3)
    assert body["samplers"] == ["penalties", "temperature", "top_k"]
    assert body["top_k"] == 5 and body["repeat_penalty"] == 1.2 and body["ignore_eos"]
    with pytest.raises(NotImplementedError, match="does not support typical_p"):
        WORKER["body"]({**REQUEST, "settings": {"typical_p": 0.5}}, [1], 3)


def test_a_request_is_answered_with_the_end_token_that_the_server_leaves_out(server: str) -> None:
    worker = started(server, {"batch": 2})
    try:
        assert worker.ready()["precision"] == "Q4_0, cache f16"
        both = {**REQUEST, "prompts": [[8, 9, 10], [1]], "seeds": [0, None]}
        assert worker.request(both)["outputs"] == [[1, 2, 3, 1, 1], [1, 1, 1, 1, 1]]
        assert worker.request({**REQUEST, "stop": [0]})["outputs"] == [[1, 2, 3, 0]]
        with pytest.raises(PeerRefused, match="does not support typical_p"):
            worker.request({**REQUEST, "settings": {"typical_p": 0.5}})
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("fails", "sentence"),
    [
        ("garbage", "llama-server answered 200: <html>a proxy</html>"),
        ("refuse", "llama-server answered 400: .*the context is too small"),
        ("no tokens", "llama-server answered without tokens"),
        ("crash", "RemoteDisconnected|ConnectionResetError"),
    ],
)
def test_a_server_that_fails_is_not_asked_again(server: str, fails: str, sentence: str) -> None:
    draft = {"mode": "draft", "depth": 3}
    worker = started(server, draft, fails)
    try:
        worker.ready()
        with pytest.raises(PeerFailed, match=sentence):
            worker.request(REQUEST)
    finally:
        worker.close()


def test_a_server_that_does_not_start_gives_its_reason(server: str) -> None:
    worker = started(server, {}, "start")
    try:
        with pytest.raises(PeerFailed, match="ended with exit code 1: error: unknown model architecture"):
            worker.ready()
    finally:
        worker.close()


def test_the_program_is_found_with_its_version(server: str, tmp_path: Path) -> None:
    (peer,) = find_environments({"llamacpp": server}, None)
    assert peer.program == server and peer.versions == {"llama.cpp": "7 (build of the stub)"}
    with pytest.raises(ValueError, match="there is no program /nowhere/llama-server; build llama.cpp"):
        find_program(ENGINE, "/nowhere/llama-server")
    with pytest.raises(ValueError, match="--version fails: is it llama-server"):
        find_program(ENGINE, "/bin/false")
    with pytest.raises(ValueError, match="measured on a CPU"):
        find_environments({"llamacpp": server}, "cuda")


CONVERTER = """
import sys
from pathlib import Path

if "broken" in sys.argv[1]:
    sys.exit("KeyError: an architecture that nobody knows")
from conversion.base import TextModel

kind = sys.argv[sys.argv.index("--outtype") + 1]
Path(sys.argv[sys.argv.index("--outfile") + 1]).write_text(f"{kind} {TextModel().get_vocab_base_pre(None)}")
"""
BASE = """
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError("unknown")
"""


@pytest.fixture
def source(server: str, tmp_path: Path) -> str:
    """A stub of llama.cpp's source around the server, with its converter and quantizer."""
    (tmp_path / gguf_models.CONVERTER).write_text(CONVERTER)
    (tmp_path / "conversion").mkdir()
    (tmp_path / "conversion" / "base.py").write_text(BASE)
    quantizer = tmp_path / "bin" / gguf_models.QUANTIZER
    quantizer.write_text('#!/bin/sh\necho "$4 of $(cat $2) $1" > "$3"\n')
    quantizer.chmod(0o755)
    return server


def test_gguf_files_are_made_once_for_each_format(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_models, "NEEDED", "json")  # sentencepiece, which CI does not install
    for name in ("model", "broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    peer = PeerEnvironment(ENGINE, sys.executable, {"llama.cpp": "7"}, source)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    messages = list[str]()

    def make(name: str, weights: str | None) -> tuple[Path, float]:
        return converted(peer, str(tmp_path / name), "bfloat16", weights, environment, messages.append)

    whole, seconds = make("model", None)
    assert whole.read_text() == "bf16 gpt-2" and seconds > 0 and len(messages) == 1
    assert make("model", None) == (whole, 0.0) and len(messages) == 1
    assert make("model", "int8")[0].read_text() == "q8_0 gpt-2"
    four, _ = make("model", "int4")
    assert four.read_text() == "Q4_0 of f32 gpt-2 --pure\n" and list(four.parent.iterdir()) == [four]
    with pytest.raises(ValueError, match="could not be converted: KeyError: an architecture"):
        make("broken", None)
    file = tmp_path / "own.gguf"
    file.write_text("a model")
    assert make("own.gguf", None) == (file, 0.0)
    with pytest.raises(ValueError, match="is compressed already: leave out --weights"):
        make("own.gguf", "int4")
    monkeypatch.setattr(gguf_models, "NEEDED", "no_such_module")
    with pytest.raises(ValueError, match="needs no_such_module: pip install no_such_module"):
        converted(peer, str(tmp_path / "model"), "float32", None, environment, messages.append)
    with pytest.raises(ValueError, match="is in no folder above"):
        converter("/usr/bin/env")


def test_rows_try_every_way_of_lookup_and_compressed_weights_only_where_they_exist(tmp_path: Path) -> None:
    launcher = PeerLauncher(
        names={"target": str(tmp_path), "draft": None},
        dtype="bfloat16",
        weights={"target": "int4", "draft": None},
        threads=1,
        needed_tokens=10,
        max_length=None,
        batch=1,
        environment=os.environ,
        on_message=lambda line: None,
        register=lambda worker: None,
    )
    vllm = PeerEnvironment(PEER_ENGINES["vllm"], sys.executable, {})
    assert launcher.rows(vllm, []) == []
    assert launcher.failed == {"vllm plain": "with vllm only whole weights are measured, not int4"}
    assert {"openvino", "llamacpp"} == set(CONVERTERS)

    lookup: Any = SimpleNamespace(method="prompt-lookup", options={"depth": 10, "max_ngram": 3})
    peer = PeerEnvironment(ENGINE, sys.executable, {})
    settings = peer_rows(peer, [lookup], None)[-1].settings
    assert list(settings) == [
        f"type={kind},depth={depth},max_ngram=3"
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
        for depth in (10, 5)
    ]
    draft: Any = SimpleNamespace(method="speculative-sampling", options={"depth": 5})
    assert list(peer_rows(peer, [draft], "draft")[-1].settings) == [
        f"{own}depth={depth}" for own in ("", "p_min=0.75,", "type=ngram-simple,") for depth in (5, 3)
    ]


@pytest.mark.slow
@pytest.mark.skipif("LLAMA_SERVER" not in os.environ, reason="LLAMA_SERVER names no llama-server")
def test_a_real_server_writes_the_texts_of_greedy_decoding(tmp_path: Path) -> None:
    import outpace

    (peer,) = find_environments({"llamacpp": os.environ["LLAMA_SERVER"]}, None)
    target = outpace.load("zoo:target", dtype="float32")
    prompt = target.tokenizer("def add(a, b):")["input_ids"]
    (own,) = outpace.generate(target, [prompt], "autoregressive", max_tokens=24, ignore_eos=True)
    place, _ = converted(peer, "zoo:target", "float32", None, os.environ, print)
    draft, _ = converted(peer, "zoo:draft", "float32", None, os.environ, print)
    ways = [
        {"mode": "plain"},
        {"mode": "draft", "depth": 4},
        {"mode": "draft", "depth": 4, "p_min": 0.75},
        {"mode": "draft", "depth": 4, "type": "ngram-simple"},
        {"mode": "prompt-lookup", "depth": 5, "max_ngram": 3, "type": "ngram-simple"},
        {"mode": "prompt-lookup", "depth": 5, "max_ngram": 3, "type": "ngram-map-k"},
        {"mode": "prompt-lookup", "depth": 5, "max_ngram": 3, "type": "ngram-map-k4v"},
    ]
    for way in ways:
        worker = started(peer.program, {"target": str(place), "draft": str(draft), **way})
        try:
            worker.ready()
            request = {**REQUEST, "prompts": [prompt], "max_tokens": 24}
            assert json.dumps(worker.request(request)["outputs"]) == json.dumps([list(own.tokens)]), way
        finally:
            worker.close()
