"""Requests made from the server's OpenAPI description get the responses that it describes, and no 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow
MAX_LENGTH = 32  # tokens of prompt and output: most requests do not limit their output
MAX_EXAMPLES = 12
SECONDS = 120  # in which a busy machine responds
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ROUTES = [
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
]


@pytest.fixture(scope="module")
def described(model: Any, serve: Any) -> Iterator[Any]:
    """The OpenAPI description of a running server, from which requests are made."""
    with serve(model, "prompt-lookup", max_length=MAX_LENGTH, max_waiting=4) as running:
        yield schemathesis.openapi.from_url(f"{running.url}/openapi.json")


def test_every_route_is_tested(described: Any) -> None:
    found = {(each.ok().method.upper(), each.ok().path) for each in described.get_all_operations()}
    assert found == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_responds_as_described(described: Any, method: str, path: str) -> None:
    @given(case=described[path][method].as_strategy())
    @settings(
        max_examples=MAX_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # a model that is not served is refused before anything else
        case.call_and_validate(checks=CHECKS, timeout=SECONDS)

    check()
