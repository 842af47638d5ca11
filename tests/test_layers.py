"""Imports point one way: a folder imports only from the layers below it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "outpace"

# From the bottom up. Each may import itself and everything on the lines before it.
LEVELS = (
    ("core", "console", "tables", "zoo"),
    ("cost", "page"),
    ("decode", "sampling", "models", "indexes"),
    ("drafters", "controllers", "verifiers"),
    ("schedules",),
    ("engine",),
    ("recipes",),
    ("proof",),
    ("api",),
    ("training",),
    ("integrations", "serving"),
    ("bench", "audit"),
    ("plan",),
    ("cli",),
    ("__main__",),
)
LEVEL = {part: height for height, parts in enumerate(LEVELS) for part in parts}
# the same for the folders of outpace/models; the modules beside them are "beside"
MODELS = (
    ("beside",),
    ("forward",),
    ("eager",),
    ("openvino", "cuda_graphs"),
    ("hf",),
    ("heads",),
    ("predictors",),
    ("slim",),
)
MODEL_LEVEL = {part: height for height, parts in enumerate(MODELS) for part in parts}
# what `outpace train` does with a kind of head or predictor stands in the folder of that kind
LESSON = re.compile(r"outpace\.models\.(heads|predictors)\.\w+\.lesson\b")
NOT_INSTALLED = {"benchmarks", "zoo_training", "tests", "scripts"}
OUTSIDE_OF_CORE = {"torch"}  # all that core may import besides the standard library and itself


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of everything `module` imports, at the top or inside a function."""
    package = module if is_package else module.rpartition(".")[0]
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def _part(module: str) -> str:
    return "training" if LESSON.match(module) else module.split(".")[1]


def _room(name: str, is_package: bool = False) -> str:
    """The folder of outpace/models that a module or a name in it belongs to."""
    room = name.split(".")[2] if name.count(".") > 1 else "beside"
    return room if room in MODEL_LEVEL or is_package else "beside"


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What `module` imports against the rule, one sentence each."""
    if module == "outpace":
        return []  # the public names: on top of everything
    part = _part(module)
    if part not in LEVEL:
        return [f"{module}: {part} has no place in tests/test_layers.py"]
    is_recipe = part == "recipes" and module.count(".") >= 3  # in a folder of a family
    own = ".".join(module.split(".")[:4]) + "." if module.count(".") > 3 else ""  # the folder of one recipe
    wrong: list[str] = []
    for line, name in imported(source, module, is_package):
        top, *rest = name.split(".")
        if top != "outpace":
            if top in NOT_INSTALLED:
                wrong.append(f"{module}:{line} imports {name}, which is not in the installed package")
            if part == "core" and top not in sys.stdlib_module_names | OUTSIDE_OF_CORE:
                wrong.append(f"{module}:{line} core imports {top}")
            continue
        other = _part(name) if rest else ""
        if other == "__version__":
            continue  # a constant, which brings nothing along
        if other not in LEVEL:
            wrong.append(f"{module}:{line} imports the public package ({name}), which stands above it")
        elif other == "recipes" and is_recipe and not (own and name.startswith(own)):
            wrong.append(f"{module}:{line} a recipe imports from outpace.recipes ({name})")
        elif other != part and LEVEL[other] >= LEVEL[part]:
            wrong.append(f"{module}:{line} {part} imports {name}, which does not stand below it")
        elif other == part == "models":
            own, room = _room(module, is_package), _room(name)
            if own != room and MODEL_LEVEL[room] >= MODEL_LEVEL[own]:
                wrong.append(f"{module}:{line} {own} imports {name}, which does not stand below it")
    return wrong


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_point_one_way() -> None:
    found = [
        sentence
        for path in sorted(PACKAGE.rglob("*.py"))
        for sentence in violations(
            path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py"
        )
    ]
    assert not found, "\n".join(["imports against the rule:", *found])


def test_the_checker_catches_what_it_is_for() -> None:
    bad = {
        ("import outpace.drafters.lookup.ngram", "outpace.core.tree"): "drafters",
        ("import numpy", "outpace.core.tree"): "numpy",
        ("from outpace.models.hf.target import Target", "outpace.decode"): "models",
        ("from ...recipes import medusa", "outpace.drafters.model.heads"): "recipes",
        ("from . import medusa", "outpace.recipes.heads.hydra"): "recipe",
        ("from outpace.recipes.heads.medusa import Head", "outpace.recipes.heads.hydra"): "recipe",
        ("from outpace.recipes.control.s2d import Head", "outpace.recipes.control.s2d_too.recipe"): "recipe",
        ("def late():\n    from outpace.bench import run", "outpace.proof.enumeration"): "bench",
        ("from outpace import load", "outpace.bench.measure.run"): "public",
        ("import outpace", "outpace.cli.commands.demo"): "public",
        ("import outpace.core", "outpace.elsewhere.thing"): "no place",
        ("from outpace.models.hf.target import HFTarget", "outpace.models.eager.forward"): "hf",
        (
            "from outpace.models.openvino import compiled",
            "outpace.models.cuda_graphs.graph_replay",
        ): "openvino",
        ("from outpace.models.heads import kinds", "outpace.models.checkpoint"): "heads",
        ("from benchmarks.peers.rows import peer_rows", "outpace.cli.commands.bench"): "not in the installed",
        ("from outpace.decode import Session", "outpace.core.contracts"): "decode",
        ("from outpace.training.losses import acceptance", "outpace.models.heads.medusa.kind"): "training",
        ("from outpace.models.heads.medusa.lesson import METHODS", "outpace.api.opener"): "lesson",
    }
    for (source, module), word in bad.items():
        assert any(word in sentence for sentence in violations(source, module)), (source, module)


def test_the_checker_lets_the_rest_through() -> None:
    good = [
        ("import math\nimport torch\nfrom .claim import Claim", "outpace.core.tree", False),
        ("from outpace.core import tree", "outpace.decode", False),
        (
            "from .ngram import NGram\nfrom ..core.tree import Grower",
            "outpace.drafters.lookup.suffix_automata",
            False,
        ),
        (
            "from outpace.drafters.lookup.ngram import NGram\nimport numpy",
            "outpace.recipes.training_free.prompt_lookup",
            False,
        ),
        ("from outpace.recipes._options import build", "outpace.recipes", True),
        ("from outpace.recipes import _options", "outpace.recipes._catalogue", False),
        ("from outpace.recipes.control.s2d.router import R", "outpace.recipes.control.s2d.recipe", False),
        ("from . import demo\nfrom outpace import api", "outpace.cli", True),
        ("from .api import load", "outpace", True),
        ("from outpace.training.losses import acceptance", "outpace.models.heads.medusa.lesson", False),
        ("from outpace import __version__", "outpace.bench.measure.provenance", False),
    ]
    for source, module, is_package in good:
        assert not violations(source, module, is_package), (source, module)
