"""Write what follows from outpace/core/sampling_params.py and stands in files: the typed arguments of
`outpace.generate`, for editors and type checkers, and the table of docs/sampling.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from outpace.core.sampling_params import BY_NAME, LOGIT_PARAMETERS, PARAMETERS, TRUNCATIONS, Parameter

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "    # of core/sampling_params.py, by scripts/sampling_parameters.py\n"
END = "    # end of these parameters\n"


def arguments() -> str:
    """The lines of the signature."""
    wanted = [each for each in PARAMETERS if each.argument is not None]
    return "".join(f"    {each.name}: {_type(each)} | None = None,\n" for each in wanted)


def table() -> str:
    """Markdown table of the parameters that warp a distribution, in the order in which they are applied."""
    lines = ["| Setting | Off | What it does | As in |", "|---|---|---|---|"]
    for each in (*LOGIT_PARAMETERS, BY_NAME["temperature"], *TRUNCATIONS):
        name = f"`{each.name}`" + (", `json_schema`" if each.name == "grammar" else "")
        off = f"{each.off:g}" if isinstance(each.off, int | float) else "none"
        lines.append(f"| {name} | {off} | {each.help.rstrip('.')} | {each.defined_in} |")
    return "\n".join([*lines, ""])


def _type(parameter: Parameter) -> str:
    return parameter.argument or type(parameter.default).__name__


SECTIONS: dict[Path, tuple[str, str, Callable[[], str]]] = {
    ROOT / "outpace" / "api" / "call.py": (BEGIN, END, arguments),
    ROOT / "docs" / "sampling.md": ("<!-- settings:begin -->\n", "<!-- settings:end -->\n", table),
}


def filled(path: Path) -> str:
    """The text of one of these files with its section up to date."""
    begin, end, section = SECTIONS[path]
    pattern = re.compile(f"({re.escape(begin)}).*?({re.escape(end)})", re.DOTALL)
    return pattern.sub(lambda match: match[1] + section() + match[2], path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path in SECTIONS:
        path.write_text(filled(path), encoding="utf-8")
