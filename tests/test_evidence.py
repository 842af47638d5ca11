"""Every method's claims have a verdict, and what is linked as evidence exists."""

from __future__ import annotations

import pytest

from scripts import evidence
from scripts.evidence import MET, MISSED, OPEN, Row

TEST = "tests/test_evidence.py::test_every_claim_has_a_verdict_and_what_shows_it_exists"


def test_every_claim_has_a_verdict_and_what_shows_it_exists() -> None:
    assert not (found := list(evidence.problems())), "\n".join(found)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (Row("It is fast.", "perhaps", note="no"), "the verdict is 'perhaps': use one of met, open,"),
        (Row("It is fast.", MET), "nothing shows that it is met: link a test"),
        (Row("It is fast.", MISSED, note="no"), "nothing shows that it is missed"),
        (Row("It is fast.", OPEN), "say in a note what is missing"),
        (Row("It is fast.", MET, [TEST + "s"]), "there is no test tests/test_evidence.py::test_every"),
        (Row("It is fast.", MET, ["tests/test_none.py::test_it"]), "there is no test tests/test_none.py"),
        (Row("It is fast.", MET, ["results/none.md"]), "there is no results/none.md in docs/"),
        (Row("It is fast.", MET, ["log.md#an-entry-that-is-not-there"]), "there is no log.md#an-entry"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(row: Row, sentence: str) -> None:
    (found,) = evidence.problems_of(row)
    assert sentence in found


def test_a_method_without_rows_is_named_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*evidence.methods(), "new-method"}
    monkeypatch.setattr(evidence, "methods", lambda: names)
    (found,) = evidence.problems()
    assert found.startswith("new-method has no row: add [[new-method]] with claim, verdict and evidence")


def test_links_lead_to_tests_pages_and_entries_of_the_log() -> None:
    log = "log.md#skip-sets-on-the-zoos-target"
    row = Row("It is fast.", MET, [TEST, "results/engine.md", log], "On one machine.")
    assert not list(evidence.problems_of(row))
    test, page, entry, note = evidence.cells(row, "../").split(" | ")[2].split("<br>")
    assert test.startswith("[test: every claim has a verdict") and test.endswith("/tests/test_evidence.py)")
    assert page.endswith("](../results/engine.md)") and note == "On one machine."
    assert entry == f"[log: Skip sets on the zoo's target](../{log})"
    text = (evidence.DOCS / "log.md").read_text(encoding="utf-8")
    assert "**Skip sets on the zoo's target.**{ #skip-sets-on-the-zoos-target }" in evidence.with_anchors(
        text
    )
