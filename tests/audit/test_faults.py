"""Every planted fault is found in a server, by the check that is for it, and a correct server passes."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.audit.check import FAULT, NOT_TESTED, PASSED, Check
from outpace.audit.endpoint import Endpoint
from outpace.audit.local_reference import LocalReference
from outpace.audit.prompts import PROMPTS
from outpace.audit.run import Audit, Budget
from tests.audit.stub import Stub, served, table_model

FAULTS = {
    "argmax taken for a sample": "samples, temperature 1",
    "temperature ignored after an acceptance": "samples, temperature 0.7",
    "top_p applied to the draft only": "samples, top_p 0.9",
    "penalties counted twice": "samples, penalties",
    "a log probability of 0": "log probabilities",
    "a log probability that is NaN": "log probabilities",
    "bonus token of the wrong position": "samples, temperature 1",
    "seeds repeat": "independence of samples",
    "requests mixed up under load": "answers to their prompts",
    "prefix cache by the end of a prompt": "prefixes of prompts",
    "prefix cache by the beginning of a prompt": "prefixes of prompts",
}


def audited(
    fault: str = "", kind: str = "ids", requests: int = 200, tokens: int = 48, **given: Any
) -> tuple[Audit, dict[str, Check]]:
    # so few false alarms that the test does not fail by chance
    with served(lambda asked, handler: Stub.answer(stub, asked)) as url:
        stub = Stub(fault, kind)
        reference = LocalReference(table_model(), "float64")
        audit = Audit(Endpoint(url, "stub"), reference, PROMPTS, Budget(requests, tokens, 300), 1e-4)
        checks = {check.name: check for check in audit.run()}
        audit.server.close()
    assert not audit.stopped
    return audit, checks


def test_a_correct_server_has_no_fault_in_a_short_audit() -> None:
    _, checks = audited(requests=80, tokens=24)
    assert not [check for check in checks.values() if check.verdict == FAULT]
    assert checks["greedy texts"].verdict == checks["log probabilities"].verdict == PASSED


@pytest.mark.parametrize("fault", ["seeds repeat", "a log probability of 0"])
def test_a_gross_fault_is_found_in_a_short_audit(fault: str) -> None:
    _, checks = audited(fault, requests=80, tokens=24)
    assert checks[FAULTS[fault]].verdict == FAULT, checks


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ids", "words"])
def test_a_correct_server_passes(kind: str) -> None:
    audit, checks = audited(kind=kind)
    assert {check.verdict for check in checks.values()} == {PASSED}, checks
    assert audit.server.num_requests <= 200
    assert checks["samples under load"].num_tokens > 1000 and checks["log probabilities"].num_tokens > 1000


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    # few tokens of the table's texts were in them before
    _, checks = audited(fault, requests=500 if "penalties" in fault else 200)
    found = checks[FAULTS[fault]]
    assert found.verdict == FAULT and found.detail, checks


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["argmax taken for a sample", "bonus token of the wrong position"])
def test_a_fault_is_found_in_texts_alone(fault: str) -> None:
    _, checks = audited(fault, kind="text", requests=1000)
    assert checks["samples, temperature 1"].verdict == FAULT, checks
    assert checks["log probabilities"].verdict == NOT_TESTED
    assert checks["independence of samples"].verdict == NOT_TESTED
