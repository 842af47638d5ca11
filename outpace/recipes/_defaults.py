"""The method of a request that names none."""

from __future__ import annotations

from outpace.models.names import usual_draft

WITH_DRAFT, WITHOUT_DRAFT = "speculative-sampling", "prompt-lookup"
DRAFTS = ("draft", "drafts")  # names of recipe options that take draft models


def default_method(target: str, *, has_draft: bool) -> str:
    """Name of the method: speculative-sampling with a given draft or if `target` has a usual draft, else
    prompt-lookup.

    target: the model's name or folder.
    """
    return WITH_DRAFT if has_draft or usual_draft(target) is not None else WITHOUT_DRAFT
