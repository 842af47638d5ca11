"""Kinds of draft heads: what is found of the folders of `outpace.models.heads`, and one more of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outpace.models import heads
from outpace.models.heads.formats.files import HeadFileError
from outpace.models.heads.formats.folder import kind_in, load_head
from outpace.models.heads.kinds import head_kinds, head_methods, kinds_by_option
from outpace.models.heads.opened_head import ChainHead
from outpace.models.heads.position_head import PositionHead
from outpace.models.names import HEADS
from outpace.models.predictors.kinds import predictor_kinds
from outpace.proof.models import transformers_models
from outpace.training.methods import methods, named

# a kind of head: a linear layer on the hidden state, in the layout of heads without a project
TOY: dict[str, str] = {
    "__init__.py": "",
    "head.py": """
from torch import nn
from outpace.models.heads.position_head import PositionHead, random_parameters

class ToyHead(PositionHead):
    method, reads_path = "toy", False

    def __init__(self, target, depth):
        super().__init__(target, depth)
        self.heads = nn.ModuleList([nn.Linear(self.hidden_size, self.vocab) for _ in range(depth)])

    def forward(self, depth, states, tokens):
        return self.heads[depth](states), states

def untrained_toy(target, seed=0):
    return random_parameters(ToyHead(target, 2), seed)
""",
    "kind.py": """
from typing import NewType
from outpace.models.heads.formats.own import own_layout
from outpace.models.heads.kinds import HeadKind
from outpace.models.heads.position_model import PositionModel
from outpace.models.heads.toy.head import ToyHead, untrained_toy

ToyModel = NewType("ToyModel", PositionModel)

def sizes(head, target):
    return {"depth": head.max_depth}

def made(config, target):
    return ToyHead(target, config["depth"])

LAYOUT = own_layout("toy", sizes, made)
KIND = HeadKind("toy", "Toy", "0000.00000", {"own": LAYOUT}, untrained_toy, (ToyModel,))
""",
    "lesson.py": """
from outpace.models.heads.toy.head import ToyHead
from outpace.models.heads.toy.kind import KIND
from outpace.training.head_methods import PositionHeadMethod, in_float32
from outpace.models.heads.position_head import random_parameters
from outpace.training.lessons.position_heads import Objective

METHODS = (
    PositionHeadMethod(
        name="toy", title="Toy", paper=KIND.paper, head="toy",
        new=lambda target, config, ids: in_float32(random_parameters(ToyHead(target, config.head.num_heads))),
        objective=Objective(soft=False, weight=lambda step, settings: 1.0),
    ),
)
""",
}
RECIPE = '''"""Toy heads."""
from functools import partial
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Parts, Target, recipe
from outpace.drafters.model.grow import grow
from outpace.drafters.model.position_drafter import position_drafter
from outpace.models.heads.toy.kind import ToyModel
from outpace.verifiers.rejection import Rejection

@recipe(paper="none", family="mine")
def toy(target: Target, *, head: ToyModel, depth: int = 2) -> Parts:
    """A chain.

    Args:
        head: a head
        depth: tokens of the chain
    """
    drafter = position_drafter(head, target.vocab, partial(grow), sampled=True)
    return Parts(target, drafter, Rejection(), Fixed(depth))
'''
USE = """
import sys
from outpace.models import heads
heads.__path__.append(sys.argv[1])
import outpace
from outpace.proof.models import transformers_models
from outpace.proof.suite import prove_default
from outpace.recipes import from_file
from outpace.training.run import train

target, data, folder = sys.argv[3:6]
changes = "steps=4 batch=2 texts=8 held_out=0.2 length=32 head.num_heads=2 answers.max_tokens=10".split()
trained = train("toy", target=target, data=data, output=folder, changes=changes)
assert "Toy" in (trained.folder / "README.md").read_text()
(plain,) = outpace.generate(target, "def f", method="autoregressive", max_tokens=12)
(found,) = outpace.generate(target, "def f", method=sys.argv[2], head=folder, max_tokens=12)
assert found.tokens == plain.tokens and found.statistics.num_draft_tokens
proof = prove_default(from_file(sys.argv[2]), transformers_models(), 8000)
assert proof.verdict == "exact" and proof.drafted, proof
"""


def test_every_kind_is_found_with_what_trains_it() -> None:
    folders = [path.parent for path in Path(heads.__path__[0]).glob("*/kind.py")]
    assert len(head_kinds()) == len(folders) == len(head_methods()) > 6
    assert [kind.asked_last for kind in head_kinds()].count(True) == 1 and head_kinds()[-1].asked_last
    for kind in head_kinds():
        assert named(kind.method).paper == kind.paper and kind.options and kind.layouts
    chains = {kind.method for kind in kinds_by_option()[ChainHead]}
    assert {"medusa", "eagle"} <= chains < set(head_methods())
    assert {each.predictor.method for each in predictor_kinds()} <= set(methods())


def test_untrained_heads_are_of_their_kind() -> None:
    target: Any = transformers_models(vocab=12).target
    for kind in head_kinds():
        head = kind.untrained(target, 1)
        assert head.method == kind.method and head.is_for(target)
        if isinstance(head, PositionHead):
            assert head.max_depth is None or head.max_depth >= 2


def test_a_head_of_a_later_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"outpace_head": "later", "hidden_size": 16}))
    (tmp_path / "model.safetensors").write_bytes((HEADS / "eagle" / "model.safetensors").read_bytes())
    target: Any = transformers_models().target
    for read in (lambda: kind_in(tmp_path), lambda: load_head("eagle", tmp_path, target)):
        with pytest.raises(HeadFileError, match="a head for the method 'later', which this .* update"):
            read()


@pytest.mark.slow
def test_a_further_kind_is_its_folder_and_a_recipe(tmp_path: Path, tiny: Any) -> None:
    """Nothing else names it: it is trained, written, read, used and proven."""
    folder = tmp_path / "kinds" / "toy"
    folder.mkdir(parents=True)
    for name, text in TOY.items():
        (folder / name).write_text(text, encoding="utf-8")
    recipe, data = tmp_path / "toy.py", tmp_path / "prompts.jsonl"
    recipe.write_text(RECIPE, encoding="utf-8")
    data.write_text("\n".join(json.dumps({"prompt": f"def f{index}(a):"}) for index in range(10)))
    arguments = [str(folder.parent), str(recipe), tiny.target, str(data), str(tmp_path / "head")]
    done = subprocess.run([sys.executable, "-c", USE, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
