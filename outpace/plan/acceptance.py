"""Acceptance that a user gives: numbers, or what `outpace replay --json` printed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outpace.cost.drafts import Drafts


@dataclass(frozen=True)
class GivenAcceptance:
    """Acceptance of one method that is not measured here."""

    name: str  # of the method, from a file; "" for numbers
    drafts: Drafts
    ranks: Sequence[float]  # acceptance rate of each rank, where trees are to be planned too
    said: str  # as the user gave it


def read_acceptance(text: str, longest: int) -> list[GivenAcceptance]:
    """`0.7`: the rate at each of `longest` positions; `0.8,0.7,0.5`: at the first, second ... position;
    `0.7/0.1/0.05`: that of the most probable token, the second ..., at every position; or a .json file of
    `outpace replay`, with an entry for each method in it. ValueError for anything else."""
    path = Path(text)
    if path.suffix == ".json":
        return _replayed(path)
    try:
        positions = [float(piece) for piece in text.split(",")] if "/" not in text else []
        ranks = [float(piece) for piece in text.split("/")] if "/" in text else []
    except ValueError:
        raise ValueError(
            "--acceptance takes a rate such as 0.7, the rates of positions 0.8,0.7,0.5, those of ranks "
            f"0.7/0.1/0.05, or a .json file of outpace replay, not {text!r}"
        ) from None
    if not all(0 <= rate <= 1 for rate in (*positions, *ranks)) or sum(ranks) > 1:
        raise ValueError(f"acceptance rates are from 0 to 1, those of ranks together too, not {text}")
    rates = positions if len(positions) > 1 else [*positions, *ranks[:1]] * longest
    return [GivenAcceptance("", Drafts.chain(rates), ranks, text)]


def _replayed(path: Path) -> list[GivenAcceptance]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["results"]
        found = [
            GivenAcceptance(row["method"], _drafts(row), (), str(path))
            for row in rows
            if row["drafted_by_position"]
        ]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not what outpace replay --json prints: make it with that command"
        ) from error
    if not found:
        raise ValueError(f"no method in {path} drafted anything: replay others")
    return found


def _drafts(row: Mapping[str, Any]) -> Drafts:
    reached, accepted, nodes = (
        row[name] for name in ("drafted_by_position", "accepted_by_position", "drafted_per_step")
    )
    missing = [0.0] * (len(reached) - len(accepted))  # positions of which no token was ever accepted
    is_tree = nodes > sum(reached) * (1 + 1e-9)
    return Drafts(reached, [*accepted, *missing], nodes if is_tree else None, can_be_cut=False)
