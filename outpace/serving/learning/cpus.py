"""CPUs that the trainer has alone."""

from __future__ import annotations

import os
import re


def reserved(text: str | None) -> frozenset[int]:
    """The CPUs of a list such as 4,6-7, which this process leaves from now on; none for None. To be called
    before libraries have started threads. ValueError for other text, for CPUs that this process may not use,
    if none is left, and on systems where processes cannot choose."""
    if text is None:
        return frozenset()
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ValueError(f"--learn-cpus is {text}; use a list such as 4,6-7")
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("--learn-cpus needs Linux: leave it out, and the trainer has a low priority")
    ranges = [each.split("-") for each in text.split(",")]
    found = {cpu for first, *last in ranges for cpu in range(int(first), int((last or [first])[0]) + 1)}
    usable = os.sched_getaffinity(0)
    if not found:
        raise ValueError(f"--learn-cpus is {text}, which is no CPU; use a list such as 4,6-7")
    if not found <= usable:
        raise ValueError(f"--learn-cpus has {min(found - usable)}, which is not one of {sorted(usable)}")
    if found == usable:
        raise ValueError(f"--learn-cpus is {text}, which leaves no CPU to the server: name fewer")
    os.sched_setaffinity(0, usable - found)
    return frozenset(found)
