"""The union of what the parts of a method want."""

from __future__ import annotations

from outpace.core.contracts import NOTHING, Want

STATES = frozenset({-1})


def test_outputs_at_drafts_only_need_no_forwards_for_prompts() -> None:
    at_drafts, at_prompts = Want(STATES, at_prompt=False), Want(frozenset({2}))
    assert not at_drafts.outputs_at_prompt and at_prompts.outputs_at_prompt
    assert not (at_drafts | NOTHING).outputs_at_prompt and not (NOTHING | at_drafts).outputs_at_prompt
    assert (at_drafts | NOTHING) == at_drafts and (NOTHING | NOTHING) == NOTHING
    both = at_drafts | at_prompts
    assert both == at_prompts | at_drafts and both.outputs_at_prompt and both.hidden == {-1, 2}
    logits = at_drafts | Want(prompt_logits=True)
    assert logits.outputs_at_prompt
