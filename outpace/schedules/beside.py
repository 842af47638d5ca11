"""What schedules have in common that draft beside the target's forwards."""

from __future__ import annotations

import warnings
from dataclasses import replace

from torch import Tensor

from outpace.core.contracts import NOTHING, Draft, Drafter, DraftsAhead
from outpace.core.tree import TokenTree
from outpace.decode import Session
from outpace.drafters.no_draft import NoDraft
from outpace.schedules.draft_thread import Drafting, DraftThread, InTurn, ThreadLost


class Beside:
    """Base of schedules (`Parts.schedule`) whose drafts are made in a thread while the target works.

    If the thread dies, drafts are made between the target's forwards from then on; if it hangs, nothing is
    drafted any more in its session. Either is said in a warning and counted in `lost`; requests go on."""

    def __init__(self, drafter: Drafter, *, overlap: bool = True) -> None:
        """`overlap`: use a thread; without, drafter and target work in turn, with the same texts. ValueError
        if the drafter needs the target to draft."""
        check_drafts_ahead(drafter)
        self._overlap = overlap
        self.lost = 0  # threads that died or hung

    def drafting(self, session: Session) -> Drafting:
        """Where a session's drafts are made; the caller closes it."""
        return DraftThread(session.cache.device) if self._overlap and not self.lost else InTurn()

    def drafted(self, session: Session, drafting: Drafting, roots: Tensor) -> tuple[Drafting, Draft]:
        """The draft that was begun last, which has these `roots` (B,) alone if the thread is lost, and where
        the next one is made."""
        try:
            return drafting, drafting.draft()
        except ThreadLost as loss:
            self._lose(session, loss)
            return InTurn(), Draft(TokenTree.roots(roots))

    def _lose(self, session: Session, loss: ThreadLost) -> None:
        """Go on without the thread, and with what it has left of the drafter."""
        self.lost += 1
        then = "no more drafts are made" if loss.hangs else "drafts are made between the target's forwards"
        warnings.warn(f"the thread that makes drafts {loss}: {then}; requests go on", stacklevel=4)
        if loss.hangs:  # it may still use the drafter
            session.parts = replace(session.parts, drafter=NoDraft())
        else:
            session.parts.drafter.release(session.rows)


def check_drafts_ahead(drafter: Drafter) -> None:
    """ValueError for a drafter that cannot draft after tokens that may be taken back."""
    if not (isinstance(drafter, DraftsAhead) and drafter.drafts_ahead and drafter.want == NOTHING):
        raise ValueError(
            f"{type(drafter).__name__} cannot draft ahead of the target, whose outputs or KV entries it "
            "needs: give a draft model with a KV cache of its own"
        )
