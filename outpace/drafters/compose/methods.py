"""The value of a recipe option that names several methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outpace.core.claim import Drawn
from outpace.core.contracts import Guarantee, Parts, Target

# (target, the draft model of methods that need one and name none, or None) -> parts; None: the method needs
# something that was not given, and was not asked for by the user
BuildMethod = Callable[[Target, Target | None], Parts | None]


@dataclass(frozen=True, eq=False)
class Methods:
    """Several methods, by name. A recipe has them as an option: its default holds their names alone, and
    `recipes.configure` opens them."""

    text: str  # as on the command line: prompt-lookup:depth=8,suffix-decoding
    builds: Mapping[str, BuildMethod] | None = None  # name with options -> builds its parts; None: not opened

    def __str__(self) -> str:
        return self.text

    def parts(self, target: Target, draft: Target | None = None) -> dict[str, Parts]:
        """New parts of each method, by its name with options. Methods of a default list that need something
        that was not given are left out. ValueError if the names were not opened."""
        if self.builds is None:
            raise ValueError(f"the methods {self.text} are names: open them with recipes.configure")
        built = {name: build(target, draft) for name, build in self.builds.items()}
        return {name: parts for name, parts in built.items() if parts is not None}


# lookups, which need nothing else, and a draft model
USUAL_METHODS = Methods("prompt-lookup,suffix-decoding,token-recycling,speculative-sampling")


def check_rejection(methods: Mapping[str, Parts]) -> None:
    """ValueError unless rejection verifies the drafts of all these methods exactly: tokens that were drawn
    from recorded distributions, and tokens that were not drawn. Or if one has a schedule of its own."""
    for name, parts in methods.items():
        if parts.schedule is not None:
            raise ValueError(f"{name} decodes by a schedule of its own: leave it out")
        if parts.guarantee is not Guarantee.EXACT:
            raise ValueError(f"{name} does not keep the target's distribution: leave it out")
        if others := [claim.__name__ for claim in parts.drafter.claims if not issubclass(claim, Drawn)]:
            raise ValueError(f"{name} claims {others[0]}, which rejection does not verify: leave it out")
