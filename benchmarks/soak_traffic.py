"""The clients of the soak test: those that wait for their answers, and those that misbehave."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from openai import APIError, AsyncOpenAI

from benchmarks.soak_malformed import http_request, malformed_requests
from benchmarks.soak_questions import (
    CHAT,
    COMPLETIONS,
    PATHS,
    Answer,
    Question,
    ask,
    open_stream,
    parse_stream,
    read_stream,
)

Send = Callable[[], Awaitable[None]]

SECONDS = 1800.0  # after which a request that has not been answered is lost
SLOW_BYTES, SLOW_PAUSE = 40, 0.1  # bytes that a slow reader reads one by one, and the seconds between them
REQUESTS_OF_A_KILLED_CLIENT = 8
# Opens streams, reads the first bytes of each, says so, and reads no more until it is killed.
KILLED_CLIENT = """
import http.client, json, sys, time
host, path, body, count = sys.argv[1:]
connections = [http.client.HTTPConnection(host) for _ in range(int(count))]
for each in connections:
    each.request("POST", path, body, {"Content-Type": "application/json"})
responses = [each.getresponse() for each in connections]
for each in responses:
    each.read(1)
print("streaming", flush=True)
time.sleep(3600)
"""


class Lost(Exception):
    """A request without the answer, or the error, that it should get."""


class MixedUp(Exception):
    """An answer that is not the one to the question."""


@dataclass
class Outcome:
    """What became of the requests."""

    numbers: dict[str, int] = field(default_factory=dict)  # kind of client -> requests that ended well
    lost: list[str] = field(default_factory=list)  # one sentence per request
    mixed_up: list[str] = field(default_factory=list)


class Traffic:
    """Sends requests to one server and keeps what became of them."""

    def __init__(self, url: str, model: str, methods: Sequence[str], seed: int) -> None:
        """`url`: without /v1; `methods`: names that requests may choose."""
        self.outcome = Outcome()
        self._host, self._model, self._methods = urlsplit(url).netloc, model, methods
        self._random = random.Random(seed)
        self._url = url
        self._client = self._connected()
        self._malformed = malformed_requests(model)
        self._expected: dict[int, Answer] = {}  # by index of the question
        self._questions: Sequence[Question] = ()

    def _connected(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0, timeout=SECONDS)

    async def disconnect(self) -> None:
        """Close the connections, which the server keeps open for later requests; those get new ones."""
        await self._client.close()
        self._client = self._connected()

    async def learn(self, questions: Sequence[Question]) -> None:
        """Ask every question when no other request is decoded; its answers are those that must come later."""
        self._questions = questions
        self._expected = {index: await ask(self._client, each) for index, each in enumerate(questions)}

    def mixed(self, number: int) -> list[Send]:
        """This many requests of all kinds of clients, as functions that send them; a client that is killed
        sends several."""
        killed = [self._killed() for _ in range(max(1, number // 400))]
        sends = killed + self._drawn(
            {self._patient: 62, self._sampling: 8, self._leaving: 12, self._wrong: 12, self._slow: 4},
            number - len(killed) * REQUESTS_OF_A_KILLED_CLIENT,
        )
        self._random.shuffle(sends)
        return sends

    def short(self, number: int) -> list[Send]:
        """This many requests of clients that are not slow."""
        kinds = {self._patient: 50, self._new: 40, self._leaving: 5, self._wrong: 5}
        return self._drawn(kinds, number)

    def _drawn(self, kinds: Mapping[Callable[[], Send], int], number: int) -> list[Send]:
        """Requests of clients drawn by their weights."""
        return [kind() for kind in self._random.choices(list(kinds), list(kinds.values()), k=number)]

    def _question(self) -> tuple[Question, Answer]:
        """A question and its answer; the way in which it is drafted does not change the answer."""
        index = self._random.randrange(len(self._questions))
        choices: list[dict[str, Any]] = [
            {},
            {"speculation": False},
            {"speculation": {"num_speculative_tokens": 2}},
            *({"speculation": {"method": name}} for name in self._methods),
        ]
        return self._questions[index].with_options(self._random.choice(choices)), self._expected[index]

    def _count(self, kind: str, send: Send, requests: int = 1) -> Send:
        """`send`, with what becomes of it counted."""

        async def counted() -> None:
            try:
                await asyncio.wait_for(send(), SECONDS)
            except MixedUp as error:
                self.outcome.mixed_up.append(f"{kind}: {error}")
            except (Lost, APIError, OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
                self.outcome.lost.append(f"{kind}: {type(error).__name__}: {error}")
            else:
                self.outcome.numbers[kind] = self.outcome.numbers.get(kind, 0) + requests

        return counted

    def _patient(self) -> Send:
        """A client that waits for its answer."""
        (question, expected), is_streamed = self._question(), self._random.random() < 0.5

        async def send() -> None:
            if is_streamed:
                async with await open_stream(self._client, question) as stream:
                    found = await read_stream(question.route, stream)
            else:
                found = await ask(self._client, question)
            _compare(found, expected)

        return self._count("streamed" if is_streamed else "complete", send)

    def _sampling(self) -> Send:
        """A client that asks for three samples."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"Tell me {self._random.randrange(1000)} things."}],
            "temperature": 1.0,
            "max_completion_tokens": 20,
            "n": 3,
        }
        is_streamed = self._random.random() < 0.5
        question = Question(CHAT, body)

        async def send() -> None:
            if is_streamed:
                async with await open_stream(self._client, question) as stream:
                    found = await read_stream(CHAT, stream)
            else:
                found = await ask(self._client, question)
            if [reason in ("stop", "length") for _, reason in found] != [True] * 3:
                raise Lost(f"three samples were asked for; the answer is {found}")

        return self._count("three samples", send)

    def _new(self) -> Send:
        """A client with a prompt that nobody has sent before."""
        prompt = f"x = {self._random.random()}\nprint("
        body = {"model": self._model, "prompt": prompt, "max_tokens": 3}

        async def send() -> None:
            [(_, reason)] = await ask(self._client, Question(COMPLETIONS, body))
            if reason not in ("stop", "length"):
                raise Lost(f"the answer ended with {reason}")

        return self._count("new prompt", send)

    def _leaving(self) -> Send:
        """A client that leaves before its answer is complete."""
        question, expected = self._question()
        is_streamed, chunks = self._random.random() < 0.7, self._random.randrange(1, 6)
        seconds = self._random.random() * 3

        async def send() -> None:
            if is_streamed:
                async with await open_stream(self._client, question) as stream:
                    found = await read_stream(question.route, stream, chunks)
                for (text, _), (whole, _) in zip(found, expected, strict=False):
                    if not whole.startswith(text):
                        raise MixedUp(f"{text!r} does not begin {whole!r}")
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(ask(self._client, question), seconds)

        return self._count("client that leaves", send)

    def _wrong(self) -> Send:
        """A client whose request is refused."""
        request = self._random.choice(self._malformed)

        async def send() -> None:
            reader, writer = await asyncio.open_connection(*self._address)
            with closing(writer):
                writer.write(request.sent)
                line = await reader.readline()
                await reader.read()
            status = int(line.split()[1]) if line else None
            if status != request.status:
                raise Lost(f"status {status} instead of {request.status} for {request.sent[:200]!r}")

        return self._count("refused", send)

    def _slow(self) -> Send:
        """A client that reads its stream byte by byte at first."""
        question, expected = self._question()

        async def send() -> None:
            loop = asyncio.get_running_loop()
            received = bytearray()
            with socket.socket() as connection:
                connection.setblocking(False)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                await loop.sock_connect(connection, self._address)
                body = question.json(stream=True)
                await loop.sock_sendall(connection, http_request(PATHS[question.route], body))
                while piece := await loop.sock_recv(connection, 1 if len(received) < SLOW_BYTES else 1024):
                    received += piece
                    if len(received) < SLOW_BYTES:
                        await asyncio.sleep(SLOW_PAUSE)
            _compare(
                await read_stream(question.route, parse_stream(question.route, bytes(received))), expected
            )

        return self._count("slow reader", send)

    def _killed(self) -> Send:
        """A process with several streams that is killed while it reads them."""
        body = {"model": self._model, "prompt": "def", "max_tokens": 400, "extra_body": {"ignore_eos": True}}
        text = Question(COMPLETIONS, body).json(stream=True).decode()

        async def send() -> None:
            arguments = [self._host, PATHS[COMPLETIONS], text, str(REQUESTS_OF_A_KILLED_CLIENT)]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", KILLED_CLIENT, *arguments, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            line = await process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            await process.wait()
            if line != b"streaming\n":
                raise Lost("the streams of a client did not begin")

        return self._count("killed client", send, REQUESTS_OF_A_KILLED_CLIENT)

    @property
    def _address(self) -> tuple[str, int]:
        host, _, port = self._host.partition(":")
        return host, int(port)


def _compare(found: Answer, expected: Answer) -> None:
    if found != expected:
        raise MixedUp(f"{found} instead of {expected}")
