"""Servers under load, and the contenders of a load test: servers, or settings of one server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

NAMED = re.compile(r"(?:([^=:/]+)=)?(.*)", re.DOTALL)
NEEDED = ("stream", "stream_options")  # fields of a request without which nothing can be measured
EXAMPLE = "http://localhost:8000/v1"


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server; `url` is the part that all endpoints share, without a slash at its end."""

    name: str
    url: str  # such as http://localhost:8000/v1

    @property
    def metrics_url(self) -> str:
        """Where servers publish counters for Prometheus: beside /v1, not below it."""
        return self.url.removesuffix("/v1") + "/metrics"


@dataclass(frozen=True)
class Contender:
    """A server together with fields that are added to each of its requests."""

    name: str
    server: Server
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def parse_server(text: str) -> Server:
    """A server from `URL` or `NAME=URL`. Without a name it is called by its host; a URL without a path gets
    /v1. ValueError for anything that is not the URL of a server."""
    match = NAMED.fullmatch(text)
    name, url = match.groups() if match else (None, text)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # both raise ValueError if they are malformed
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not the URL of a server: give one such as {EXAMPLE} or NAME={EXAMPLE}")
    if parts.username or parts.password:
        raise ValueError("a URL with a password would be saved with the results: use --api-key instead")
    path = parts.path.rstrip("/") or "/v1"
    return Server(name or parts.netloc, f"{parts.scheme}://{parts.netloc}{path}")


def parse_extra_bodies(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Fields to add to requests, by name, from texts `NAME=JSON`. ValueError if the JSON is not an object, a
    name occurs twice, or a field would end the streaming."""
    bodies: dict[str, dict[str, Any]] = {}
    for text in given:
        name, _, body = text.partition("=")
        try:
            fields = json.loads(body)
        except json.JSONDecodeError:
            fields = None
        if not name or not isinstance(fields, dict):
            raise ValueError(f"--extra-body takes NAME=JSON, as in greedy='{{\"top_k\": 1}}', not {text}")
        if name in bodies:
            raise ValueError(f"--extra-body names {name} twice: give each setting a name of its own")
        if fixed := [each for each in NEEDED if each in fields]:
            raise ValueError(f"--extra-body {name} sets {fixed[0]}, which is needed to measure: leave it out")
        bodies[name] = fields
    return bodies


def line_up(servers: Sequence[Server], bodies: Mapping[str, Mapping[str, Any]]) -> list[Contender]:
    """The contenders: each server with each extra body, or as it is if there are none. The first one is the
    reference of all ratios. ValueError if there is no server or two have the same name."""
    if not servers:
        raise ValueError(f"there is no server to load: give its URL, such as {EXAMPLE}")
    names = [server.name for server in servers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two servers are called {twice[0]}: name them with --url NAME=URL")
    if not bodies:
        return [Contender(server.name, server) for server in servers]
    return [
        Contender(name if len(servers) == 1 else f"{server.name}, {name}", server, body)
        for server in servers
        for name, body in bodies.items()
    ]
