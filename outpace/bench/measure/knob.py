"""An option of LOSSY methods that is measured with several values: what speed costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outpace.bench.measure import synthetic
from outpace.bench.measure.line_up import find
from outpace.core.contracts import Guarantee
from outpace.recipes import Method, option_value, split_outside


@dataclass(frozen=True)
class Knob:
    """An option and the values that it is measured with."""

    option: str
    values: tuple[Any, ...]

    @staticmethod
    def parse(text: str) -> Knob:
        """The knob written as `epsilon=0.05,0.1,0.2`. ValueError for other text and for fewer than two
        values."""
        name, _, values = text.partition("=")
        found = tuple(dict.fromkeys(map(option_value, split_outside(values, ","))))
        if not name.strip() or len(found) < 2:
            raise ValueError(
                f"--pareto takes an option and two values or more, as in epsilon=0.05,0.1, not {text!r}"
            )
        return Knob(name.strip().replace("-", "_"), found)

    def spread(self, methods: Sequence[Method]) -> tuple[list[Method], dict[str, tuple[str, str]]]:
        """The methods, each LOSSY one that has the option once for each value; and of these the method's
        label without it and the value, by label. ValueError if there is none."""
        spread, curves = list[Method](), dict[str, tuple[str, str]]()
        options: dict[str, str] = {}  # of the LOSSY methods without this one
        for method in methods:
            recipe = None if method.name == synthetic.NAME else find(method.name)
            is_lossy = recipe is not None and recipe.guarantee is Guarantee.LOSSY
            if recipe is None or not is_lossy or self.option not in recipe.options:
                spread.append(method)
                options |= {recipe.name: ", ".join(recipe.options)} if recipe and is_lossy else {}
                continue
            others = {name: value for name, value in method.options.items() if name != self.option}
            for value in self.values:
                spread.append(replace(method, options={**others, self.option: value}))
                curves[spread[-1].label] = replace(method, options=others).label, f"{self.option}={value}"
        if not curves:
            has = "; ".join(f"{name} has {found}" for name, found in options.items())
            raise ValueError(
                f"--pareto: no LOSSY method here has an option {self.option} ({has})"
                if options
                else "--pareto is for LOSSY methods: name one with --methods, such as medusa-typical"
            )
        return spread, curves
