"""Every planted fault is found in a server, by the check that is for it, and a correct server passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outpace.audit.check import FAULT, NOT_TESTED, PASSED, Check
from outpace.audit.endpoint import Endpoint
from outpace.audit.endpoint_reference import EndpointReference
from outpace.audit.local_reference import LocalReference
from outpace.audit.prompts import PROMPTS
from outpace.audit.run import Audit, Budget
from outpace.audit.setting import ROUNDING, Setting
from tests.audit.stub import END, Stub, served, table_model, text_of

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


class TableReference(LocalReference):
    """The table decodes without the engine."""

    def _texts(
        self, prompts: Sequence[Sequence[int]], setting: Setting, max_tokens: int, seed: int
    ) -> list[list[int]]:
        asked = {"max_tokens": max_tokens, "seed": seed, **setting.fields}
        return [Stub().generate(list(prompt), asked)[0] for prompt in prompts]

    def _text(self, before: Sequence[int], tokens: Sequence[int]) -> str:
        # the table's texts have many bytes that are no characters, which decoders treat differently
        return text_of([token for token in tokens if token != END])


def audited(
    fault: str = "",
    kind: str = "ids",
    requests: int = 200,
    tokens: int = 48,
    reference: Any = None,
    prompts: Sequence[str] = PROMPTS,
) -> tuple[Audit, dict[str, Check]]:
    """An audit of a stub, against its table unless another reference is given."""
    stub = Stub(fault, kind)
    with served(lambda asked, handler: stub.answer(asked)) as url:
        server, against = Endpoint(url, "stub"), reference or TableReference(table_model(), "float64")
        # so few false alarms that the test does not fail by chance
        audit = Audit(server, against, prompts, Budget(requests, tokens, 300), 1e-4)
        checks = {check.name: check for check in audit.run()}
        server.close()
    assert not audit.stopped
    return audit, checks


def test_a_correct_server_has_no_fault_in_a_short_audit() -> None:
    _, checks = audited(requests=50, tokens=16, prompts=PROMPTS[:4])
    assert not [check for check in checks.values() if check.verdict == FAULT]
    assert checks["greedy texts"].verdict == checks["log probabilities"].verdict == PASSED


@pytest.mark.parametrize("fault", ["seeds repeat", "a log probability of 0"])
def test_a_gross_fault_is_found_in_a_short_audit(fault: str) -> None:
    _, checks = audited(fault, requests=50, tokens=16, prompts=PROMPTS[:4])
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
@pytest.mark.parametrize("fault", ["", "bonus token of the wrong position"])
def test_texts_alone_are_compared_with_the_models_own(fault: str) -> None:
    _, checks = audited(fault, kind="text", requests=800 if fault else 400)
    sampled = {check.verdict for name, check in checks.items() if name.startswith("samples")}
    assert (FAULT in sampled) == bool(fault) and PASSED in sampled, checks
    assert checks["greedy texts"].verdict == PASSED or fault
    assert checks["log probabilities"].verdict == NOT_TESTED
    assert checks["independence of samples"].verdict == NOT_TESTED
    assert checks["answers to their prompts"].verdict == NOT_TESTED


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "argmax taken for a sample"])
def test_a_server_that_gives_log_probabilities_of_prompts_is_a_reference(fault: str) -> None:
    stub = Stub()
    with served(stub.reply) as url:
        reference = EndpointReference(Endpoint(url, "stub"), ROUNDING["float64"])
        _, checks = audited(fault, reference=reference, requests=300)
    assert checks["samples, temperature 1"].verdict == (FAULT if "argmax" in fault else PASSED), checks
    assert checks["log probabilities"].verdict == checks["greedy texts"].verdict == PASSED
    if not fault:
        assert {check.verdict for check in checks.values()} == {PASSED}, checks


@pytest.mark.slow
def test_any_other_server_is_a_reference_by_its_texts() -> None:
    stub = Stub(kind="words")
    with served(lambda asked, handler: stub.answer(asked)) as url:
        reference = EndpointReference(Endpoint(url, "stub"), ROUNDING["float64"])
        _, checks = audited(kind="text", reference=reference, requests=300)
        assert checks["greedy texts"].verdict == PASSED and checks["greedy texts"].num_texts
        assert checks["samples, top_p 0.9"].verdict == PASSED, checks
        assert checks["independence of samples"].verdict == NOT_TESTED
        _, checks = audited("seeds repeat", kind="text", reference=reference, requests=600)
        assert FAULT in {checks[f"samples, {name}"].verdict for name in ("temperature 1", "penalties")}
