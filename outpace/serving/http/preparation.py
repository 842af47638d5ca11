"""Thread pools that tokenize prompts and compile JSON schemas and grammars, and limits on the latter."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from outpace.serving.http.errors import ApiError

# The time to compile a schema grows with the square of its size and the cube of its depth.
MAX_SCHEMA_BYTES = 32 << 10  # of its JSON
MAX_SCHEMA_DEPTH = 64  # objects and lists within one another
SCHEMA_SECONDS = 10.0  # after which a client no longer waits for its schema
NUM_SCHEMA_THREADS = 2
# Tokenizing a megabyte takes seconds of a core, and whatever else a large request holds takes time too.
LONG_BYTES = 64 << 10  # of a request from which it counts as long
NUM_LONG_THREADS = max(1, (os.cpu_count() or 1) // 4)
MAX_LONG = 64  # long requests that are prepared or wait for it

Prepared = TypeVar("Prepared")


class Preparation:
    """Prepares requests in threads. Those with a JSON schema have threads of their own: a compilation cannot
    be interrupted, and must not hold back requests without a schema. So have long requests, which would take
    all threads and cores from short ones."""

    def __init__(self, schema_seconds: float = SCHEMA_SECONDS) -> None:
        """`schema_seconds`: that a request with a schema may take."""
        self._seconds = schema_seconds
        self._schema_threads = ThreadPoolExecutor(NUM_SCHEMA_THREADS, "outpace-schema")
        self._long_threads = ThreadPoolExecutor(NUM_LONG_THREADS, "outpace-long")
        self._num_long = 0

    async def run(
        self, work: Callable[[], Prepared], num_bytes: int, schema_field: str | None = None
    ) -> Prepared:
        """The result of `work`, called in a thread. `num_bytes`: the size of the request. `schema_field`: its
        field with a schema or grammar that `work` compiles, or None. ApiError if that takes too long or if
        all threads are taken for too long, and for too many long requests."""
        if schema_field is None:
            return await (asyncio.to_thread(work) if num_bytes < LONG_BYTES else self._run_long(work))
        future = self._schema_threads.submit(work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            if future.cancelled():  # before it began
                sentence = "the server is compiling the schemas and grammars of others: try again later"
                raise ApiError(503, sentence, headers={"Retry-After": "10"}) from None
            sentence = f"{schema_field} takes over {self._seconds:g} s to compile"
            raise ApiError(400, f"{sentence}: simplify it", param=schema_field) from None

    async def _run_long(self, work: Callable[[], Prepared]) -> Prepared:
        if self._num_long >= MAX_LONG:
            sentence = f"{MAX_LONG} long requests are being read: try again later"
            raise ApiError(429, sentence, code="queue_full", headers={"Retry-After": "10"})
        self._num_long += 1
        try:
            return await asyncio.wrap_future(self._long_threads.submit(work))
        finally:
            self._num_long -= 1


def check_schema(schema: Any, field: str) -> None:
    """Raise ApiError if a schema, a grammar as text or a list of texts is too large or nested too deeply;
    `field`: the request field it is in."""
    depth, level = 0, [schema]
    while level and depth <= MAX_SCHEMA_DEPTH:
        level = [value for each in level for value in _values(each) if isinstance(value, dict | list)]
        depth += 1
    if level:
        sentence = f"{field} has more than {MAX_SCHEMA_DEPTH} levels: nest it less deeply"
        raise ApiError(400, sentence, param=field)
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > MAX_SCHEMA_BYTES:
        sentence = f"{field} has {size} bytes, but at most {MAX_SCHEMA_BYTES} are compiled"
        raise ApiError(400, f"{sentence}: shorten it", param=field)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else value
