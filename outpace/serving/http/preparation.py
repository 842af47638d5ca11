"""Thread pools that tokenize prompts and compile JSON schemas, and limits on the schemas of requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from outpace.serving.http.errors import ApiError

# The time to compile a schema grows with the square of its size and the cube of its depth.
MAX_SCHEMA_BYTES = 32 << 10  # of its JSON
MAX_SCHEMA_DEPTH = 64  # objects and lists within one another
SCHEMA_SECONDS = 10.0  # after which a client no longer waits for its schema
NUM_SCHEMA_THREADS = 2

Prepared = TypeVar("Prepared")


class Preparation:
    """Prepares requests in threads. Those with a JSON schema have threads of their own: a compilation cannot
    be interrupted, and must not hold back requests without a schema."""

    def __init__(self, schema_seconds: float = SCHEMA_SECONDS) -> None:
        """`schema_seconds`: that a request with a schema may take."""
        self._seconds = schema_seconds
        self._schema_threads = ThreadPoolExecutor(NUM_SCHEMA_THREADS, "outpace-schema")

    async def run(self, work: Callable[[], Prepared], schema_field: str | None) -> Prepared:
        """The result of `work`, called in a thread. `schema_field`: the request's field with a schema that
        `work` compiles, or None. ApiError if that takes too long or if all threads are taken for too long."""
        if schema_field is None:
            return await asyncio.to_thread(work)
        future = self._schema_threads.submit(work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            if future.cancelled():  # before it began
                sentence = "the server is compiling the JSON schemas of others: try again later"
                raise ApiError(503, sentence, headers={"Retry-After": "10"}) from None
            sentence = f"{schema_field} has a JSON schema that takes over {self._seconds:g} s to compile"
            raise ApiError(400, f"{sentence}: simplify it", param=schema_field) from None


def check_schema(schema: Mapping[str, Any], field: str | None) -> None:
    """Raise ApiError if a schema is too large or nested too deeply; `field`: the request field it is in."""
    depth, level = 0, [schema]
    while level and depth <= MAX_SCHEMA_DEPTH:
        level = [value for each in level for value in _values(each) if isinstance(value, dict | list)]
        depth += 1
    if level:
        sentence = f"{field} has a JSON schema of more than {MAX_SCHEMA_DEPTH} levels: nest it less deeply"
        raise ApiError(400, sentence, param=field)
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > MAX_SCHEMA_BYTES:
        sentence = f"{field} has a JSON schema of {size} bytes, but at most {MAX_SCHEMA_BYTES} are compiled"
        raise ApiError(400, f"{sentence}: shorten it", param=field)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else value
