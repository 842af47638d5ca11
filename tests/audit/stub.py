"""A small server with speculative decoding of its own, correct or with a planted fault, over a model that is
a table."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outpace.api.model import Model
from outpace.models.vocabulary import Vocabulary
from tests.conftest import tokenizer

VOCAB, END, DEPTH, TOPICS = 320, 0, 3, 64


class Table(nn.Module):
    """A language model: the logits depend on the last token, the one before it, and the first 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        self.last = generator.normal(0, 1.6, (VOCAB, VOCAB))
        self.before = generator.normal(0, 0.8, (VOCAB, VOCAB))
        self.topic = generator.normal(0, 1.2, (TOPICS, VOCAB))
        self.noise = generator.normal(0, 0.7, (VOCAB, VOCAB))  # of the draft
        self.dtype = torch.float64
        self.config = SimpleNamespace(dtype=torch.float64)

    def logits(self, text: Sequence[int], topic: int | None = None) -> np.ndarray:
        """After a text; `topic`: in place of that of its first tokens."""
        topic = topic_of(text) if topic is None else topic
        return self.last[text[-1]] + self.before[text[-2]] + self.topic[topic]

    def forward(self, ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        [text] = ids.tolist()
        before = [text[0], *text[:-1]]
        topics = [topic_of(text[: at + 1]) for at in range(len(text))]
        found = self.last[text] + self.before[before] + self.topic[topics]
        return SimpleNamespace(logits=torch.tensor(found)[None])


def topic_of(text: Sequence[int]) -> int:
    return sum(text[:16]) % TOPICS


TABLE = Table()
TOKENIZER = tokenizer(VOCAB)
PIECES = Vocabulary.of(TOKENIZER, VOCAB).pieces


def table_model() -> Model:
    """The table as the model of a reference."""
    target: Any = SimpleNamespace(model=TABLE, vocab=VOCAB, device="cpu")
    return Model("table", target, TOKENIZER, SimpleNamespace(eos_token_id=[END]))


class Stub:
    """Generates speculatively. `fault`: what is wrong, or "" for nothing."""

    def __init__(self, fault: str = "", kind: str = "ids") -> None:
        """`kind`: what answers have besides the text: "ids", "words" (with log probabilities) or "text"."""
        self.fault, self.kind = fault, kind
        self.active: dict[int, list[int]] = {}  # prompts that are being answered, by thread
        self.topics: dict[tuple[int, ...], list[int]] = {}  # of a faulty prefix cache
        self.lock = threading.Lock()
        self.num_requests = 0

    def probs(self, text: list[int], prompt: list[int], asked: dict[str, Any], accepted: int) -> np.ndarray:
        logits = TABLE.logits(text)
        counts = Counter(text[len(prompt) :])
        times = 2 if self.fault == "penalties counted twice" else 1
        for token, count in counts.items():
            logits[token] -= times * (
                asked.get("presence_penalty", 0) + asked.get("frequency_penalty", 0) * count
            )
        temperature = asked["temperature"]
        if temperature == 0:
            return np.eye(VOCAB)[logits.argmax()]
        if self.fault == "temperature ignored after an acceptance" and accepted:
            temperature = 1.0
        return _softmax(logits / temperature)

    def generate(self, prompt: list[int], asked: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Tokens, and which of them were accepted draft tokens."""
        seed = 0 if self.fault == "seeds repeat" else asked.get("seed")
        random = np.random.default_rng(seed)
        text, accepted_at = list(prompt), list[int]()
        most, top_p = asked["max_tokens"], asked.get("top_p", 1)
        while len(text) - len(prompt) < most and END not in text[len(prompt) :]:
            drafted, draft_probs, path = list[int](), list[np.ndarray](), list(text)
            for _ in range(DEPTH):
                q = _nucleus(_softmax(TABLE.logits(path) + TABLE.noise[path[-1]]), top_p)
                drafted.append(_draw(q, random))
                draft_probs.append(q)
                path.append(drafted[-1])
            accepted = 0
            while True:
                p = self.probs(text, prompt, asked, accepted)
                if self.fault != "top_p applied to the draft only":
                    p = _nucleus(p, top_p)
                if accepted == DEPTH:
                    break
                token, q = drafted[accepted], draft_probs[accepted]
                if random.random() >= p[token] / q[token]:
                    p = np.maximum(p - q, 0)
                    p /= p.sum()
                    break
                accepted_at.append(len(text) - len(prompt))
                text.append(token)
                accepted += 1
            if self.fault == "bonus token of the wrong position" and accepted == DEPTH:
                p = self.probs(text[:-1], prompt, asked, accepted)
            if self.fault == "argmax taken for a sample" and accepted:
                p = np.eye(VOCAB)[p.argmax()]
            text.append(_draw(p, random))
        tokens = text[len(prompt) :][:most]
        if END in tokens:
            tokens = tokens[: tokens.index(END) + 1]
        return tokens, accepted_at

    def reply(self, asked: dict[str, Any], handler: Any) -> Any:
        """The answer of a server that also tokenizes, and gives log probabilities of prompts."""
        if handler.path == "/tokenize":
            return {"tokens": TOKENIZER(asked["prompt"])["input_ids"]}
        if "prompt_logprobs" not in asked:
            return self.answer(asked)
        rows: list[Any] = [None]
        for at in range(1, len(tokens := asked["prompt"])):
            logs = np.log(_softmax(TABLE.logits([tokens[0], *tokens[:at]][-2:], topic_of(tokens[:at]))))
            order = np.argsort(-logs)
            ranks = order.argsort() + 1
            listed = {*order[: asked["prompt_logprobs"]].tolist(), tokens[at]}
            rows.append(
                {str(each): {"logprob": float(logs[each]), "rank": int(ranks[each])} for each in listed}
            )
        return {"choices": [{"text": "", "prompt_logprobs": rows}]}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.num_requests += 1
            number = self.num_requests
            self.active[number] = asked["prompt"]
            others = [each for each in self.active.values() if each != asked["prompt"]]
        prompt = given = asked["prompt"]
        if isinstance(given, str):
            prompt = given = TOKENIZER(given)["input_ids"]
        if self.fault == "requests mixed up under load" and others and number % 4 == 0:
            given = others[0]
        if self.fault == "prefix cache by the end of a prompt":
            given = self.topics.setdefault(tuple(prompt[-12:]), prompt)
        if self.fault == "prefix cache by the beginning of a prompt":
            given = self.topics.setdefault(tuple(prompt[:32]), prompt)
        try:
            tokens, accepted = self.generate(given, asked)
        finally:
            threading.Event().wait(0.005)  # so that requests under load meet
            with self.lock:
                del self.active[number]
        shown = [token for token in tokens if token != END]
        choice: dict[str, Any] = {
            "index": 0,
            "text": text_of(shown),
            "finish_reason": "stop" if END in tokens else "length",
            "logprobs": None,
        }
        if self.kind == "ids" and asked.get("return_token_ids"):
            choice["token_ids"] = tokens
        if self.kind != "text" and asked.get("logprobs") is not None:
            choice["logprobs"] = self.logprobs(prompt, shown, set(accepted))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        return {"object": "text_completion", "choices": [choice], "usage": usage}

    def logprobs(self, prompt: list[int], tokens: list[int], accepted: set[int]) -> dict[str, Any]:
        text, found = list(prompt), list[float]()
        for at, token in enumerate(tokens):
            value = float(np.log(_softmax(TABLE.logits(text))[token]))
            if self.fault == "a log probability of 0" and at in accepted:
                value = 0.0
            if self.fault == "a log probability that is NaN" and at == 3:
                value = float("nan")
            found.append(value)
            text.append(token)
        words = [_word(token) for token in tokens]
        return {"tokens": words, "token_logprobs": found, "top_logprobs": [{}] * len(tokens)}


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] or b"" for token in tokens).decode("utf-8", "replace")


def _word(token: int) -> str:
    """As OpenAI's API spells tokens."""
    piece = PIECES[token]
    if piece is None:
        return TOKENIZER.convert_ids_to_tokens(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _softmax(logits: np.ndarray) -> np.ndarray:
    found = np.exp(logits - logits.max())
    return found / found.sum()


def _draw(p: np.ndarray, random: np.random.Generator) -> int:
    """A token of these probabilities: the one that `Generator.choice` draws, in less time."""
    sums = p.cumsum()
    return int(sums.searchsorted(random.random() * sums[-1], side="right"))


def _nucleus(p: np.ndarray, top_p: float) -> np.ndarray:
    if top_p == 1:
        return p
    order = np.argsort(-p, kind="stable")
    ahead = np.cumsum(p[order]) - p[order]
    kept = np.zeros_like(p)
    kept[order[ahead < top_p]] = p[order[ahead < top_p]]
    return kept / kept.sum()


@contextmanager
def served(reply: Any) -> Iterator[str]:
    """A server on a free port; yields the address of its API. `reply`: the body of a POST as JSON, and the
    handler -> the JSON value of the answer, or None if it has answered itself."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or a body waits 40 ms for the client to confirm its headers

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def send(self, value: Any, status: int = 200, **headers: str) -> None:
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, each in headers.items():
                self.send_header(name.replace("_", "-"), each)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send({"data": [{"id": "stub"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path not in ("/v1/completions", "/tokenize"):
                self.send({"error": {"message": "not found"}}, 404)
            elif (value := reply(asked, self)) is not None:
                self.send(value)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that went away

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
