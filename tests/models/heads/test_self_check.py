"""A head that was trained for a few seconds, written in wrong conventions: the check names each of them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from outpace.api.model import Model
from outpace.api.opener import ModelOpener
from outpace.core.contracts import Prompt, Want
from outpace.models.fingerprint import KEY
from outpace.models.heads.draft_head import DraftHead, head_config, random_weights
from outpace.models.heads.eagle.head import EagleHead
from outpace.models.heads.eagle3.head import Eagle3Head
from outpace.models.heads.formats.folder import load_head, save_head
from outpace.models.heads.self_check import SelfCheck, self_check
from outpace.models.hf.target import HFTarget
from tests.tiers import only, slow

IDS = "eagle_aux_hidden_state_layer_ids"
TAPS = (1, 3, 5)
STEPS = 70  # after them the first drafts are right everywhere
TEXT = torch.randint(0, 61, (300,), generator=torch.Generator().manual_seed(5)).tolist()


def hidden_states(target: HFTarget, text: list[int] = TEXT) -> tuple[dict[int, Tensor], Tensor]:
    """The target's hidden states at all tokens but the last, and its most probable token after each."""
    want = Want(hidden=frozenset({-1, *TAPS}), prompt_logits=True)
    _, scores = target.prefill([Prompt(torch.tensor(text))], [0], target.open(1, 300), want)
    assert scores.logits is not None
    return dict(scores.hidden), scores.logits.argmax(-1)


def train(head: Any, target: HFTarget, steps: int) -> DraftHead:
    """Learn the target's choices on TEXT by heart: first drafts from its hidden states, second drafts from
    the head's own outputs."""
    weights = [head.fc, head.layers] if isinstance(head, EagleHead) else [head.fc, head.layers, head.lm_head]
    random_weights(3, weights)
    states, chosen = hidden_states(target)
    hidden = torch.cat([states[layer] for layer in head.taps], -1)[:-1]
    tokens, labels = torch.tensor(TEXT)[None, 1:-1], chosen[1:]
    if head.draft_ids is not None:
        # the most probable of the tokens that the head can draft
        place = {int(token): index for index, token in enumerate(head.draft_ids)}
        labels = torch.tensor([place.get(int(token), -100) for token in labels])
    positions = torch.arange(tokens.shape[1])[None]
    optimizer = torch.optim.Adam(head.own.values(), lr=1e-2)
    outputs: list[Tensor] = []  # of the decoder layer, before the norm
    hook = head.norm.register_forward_pre_hook(lambda module, inputs: outputs.append(inputs[0]))
    for _ in range(steps):
        optimizer.zero_grad()
        outputs.clear()
        features = head.fuse(hidden)[None]
        first = head(tokens, positions, features=features).logits[0]
        own = head.norm(outputs[0]) if head.state_layer == -1 and isinstance(head, Eagle3Head) else outputs[0]
        second = head(tokens[:, 1:], positions[:, :-1] + 1, features=own[:, :-1]).logits[0]
        loss = functional.cross_entropy(first, labels) + functional.cross_entropy(second, labels[1:])
        loss.backward()
        optimizer.step()
    hook.remove()
    return head.eval()


@pytest.fixture(scope="module")
def target() -> HFTarget:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    return HFTarget(LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def trained(target: HFTarget) -> Callable[..., DraftHead]:
    """Heads with these options, each trained once."""
    made: dict[str, DraftHead] = {}

    def head(kind: str = "eagle3", draft_ids: Any = None, steps: int = STEPS, **options: bool) -> DraftHead:
        key = f"{kind} {draft_ids} {steps} {options}"
        if key not in made:
            if kind == "eagle":
                bare: DraftHead = EagleHead(head_config(target, 61), target.embed, target.head)
            else:
                ids = None if draft_ids is None else torch.tensor(draft_ids)
                config = head_config(target, 61 if ids is None else len(ids))
                bare = Eagle3Head(config, target.embed, TAPS, draft_ids=ids, **options)
            made[key] = train(bare, target, steps)
        return made[key]

    return head


Edit = Callable[[dict[str, Any], dict[str, Tensor]], None]


def checked(
    head: DraftHead, target: HFTarget, folder: Path, edit: Edit, layout: Any = None, text: list[int] = TEXT
) -> SelfCheck:
    """The check of a head that was written and read again, after changes to its configuration and tensors."""
    save_head(head, folder, target, layout=layout)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    edit(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return self_check(target, load_head(head.method, folder, target), text)


SOME = list(range(0, 40, 2))  # a third of the tokens
HEADS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"draft_ids": SOME},
    {"kind": "eagle"},
]


SLOW = ({"norm_before_residual": True}, {"norm_output": True}, {"norm_before_fc": True}, {"fc_norm": True})


@pytest.mark.parametrize(
    "options",
    [pytest.param(each, marks=pytest.mark.slow) if each in SLOW else each for each in HEADS],
    ids=str,
)
def test_a_head_that_is_read_as_it_was_trained_has_no_findings(
    options: dict[str, Any], trained: Callable[..., DraftHead], target: HFTarget, tmp_path: Path
) -> None:
    found = checked(trained(**options), target, tmp_path, lambda config, tensors: None)
    assert found.findings == () and found.num_drafts == len(TEXT) - 2
    share = found.first / (0.25 if "draft_ids" in options else 1)  # tokens that it cannot draft
    assert share > 0.9 and found.second > found.first / 4


def conventions() -> dict[str, tuple[dict[str, Any], Any, Edit]]:
    """Each wrong convention: options of the head, layout, changes to its files."""

    def numbers_of_sglang(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config[IDS] = list(TAPS)  # in vLLM's key

    def numbers_of_vllm(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config[IDS]
        config["eagle_config"][IDS] = [layer + 1 for layer in TAPS]  # in SGLang's key

    def last_layer_first(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(3, -1)[::-1], -1)

    def without_residual_key(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config["norm_before_residual"]

    def plain_residual(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["norm_before_residual"] = False

    def without_output_key(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        del config["norm_output"]

    def normed_output(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["norm_output"] = True

    def token_ids(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["d2t"] = torch.tensor(SOME)
        del tensors["t2d"]  # which vLLM ignores, and which would tell

    def without_norm(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["norm_before_fc"] = config["fc_norm"] = False
        for name in [name for name in tensors if name.startswith(("input_norm.", "fc_norm."))]:
            del tensors[name]

    def with_norm(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["norm_before_fc"] = True
        tensors["input_norm.weight"] = torch.ones(3 * 32)

    def hidden_state_first(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(2, -1)[::-1], -1)

    return {
        "layers +1": ({}, "speculators", numbers_of_sglang),
        "layers -1": ({}, "raw", numbers_of_vllm),
        "layers reversed": ({}, "speculators", last_layer_first),
        "norm_before_residual false": ({}, "speculators", without_residual_key),
        "norm_before_residual true": ({"norm_before_residual": True}, "speculators", plain_residual),
        "norm_output true": ({"norm_output": True}, "raw", without_output_key),
        "norm_output false": ({}, "raw", normed_output),
        "d2t absolute": ({"draft_ids": SOME}, "speculators", token_ids),
        "norm_before_fc": ({"norm_before_fc": True}, "speculators", without_norm),
        "fc_norm": ({"fc_norm": True}, "speculators", without_norm),
        "no norm before fc": ({}, "speculators", with_norm),
        "halves of fc swapped": ({"kind": "eagle"}, "eagle", hidden_state_first),
    }


# All bring features to one size, and the weights of a norm that is gone cannot be restored: the text does not
# tell them apart.
ALIKE = {"norm_before_fc", "fc_norm", "norm_before_residual true"}


# one of each part of a head's files: numbers of layers, weights, options of the layer, token ids
QUICK = {"layers -1", "layers reversed", "norm_output true", "d2t absolute", "halves of fc swapped"}


@pytest.mark.parametrize("reading", only(QUICK, conventions()))
def test_a_wrong_convention_is_named(
    reading: str, trained: Callable[..., DraftHead], target: HFTarget, tmp_path: Path
) -> None:
    options, layout, edit = conventions()[reading]
    found = checked(trained(**options), target, tmp_path, edit, layout)
    named = {each.reading: each for each in found.findings}
    assert reading in named and named.keys() <= (ALIKE if reading in ALIKE else {reading}), found
    right = checked(trained(**options), target, tmp_path / "right", lambda config, tensors: None, layout)
    before, after = ((each.second if "norm_output" in reading else each.first) for each in (found, right))
    assert named[reading].configured == before
    if reading in ("norm_before_fc", "fc_norm"):
        assert before + 0.3 < named[reading].agreement
    else:
        assert before < named[reading].agreement == pytest.approx(after, abs=0.01)


def test_a_short_text_proves_nothing(
    trained: Callable[..., DraftHead], target: HFTarget, tmp_path: Path
) -> None:
    _, _, edit = conventions()["layers reversed"]
    wrong = checked(trained(), target, tmp_path, edit)
    assert wrong.findings
    head = load_head("eagle3", tmp_path, target)
    short = self_check(target, head, TEXT[:17])
    assert short.num_drafts == 15 and short.first < 0.6 and not short.findings
    with pytest.raises(ValueError, match="give a few hundred"):
        self_check(target, head, TEXT[:15])


@pytest.mark.parametrize("steps", [slow(1), 10, slow(20)])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_head_that_has_learnt_little_has_no_findings(
    kind: str, steps: int, trained: Callable[..., DraftHead], target: HFTarget
) -> None:
    found = self_check(target, trained(kind, steps=steps), TEXT)
    assert found.first < 0.8 and not found.findings


def test_the_check_leaves_the_head_as_it_was(trained: Callable[..., DraftHead], target: HFTarget) -> None:
    head: Any = trained()
    before = {name: each.clone() for name, each in head.state_dict().items()}
    self_check(target, head, TEXT)
    assert head.state_layer == 0 and not head.layers[0].norm_before_residual and head.fc_norm is None
    assert all(torch.equal(each, before[name]) for name, each in head.state_dict().items())
    assert all(cache.lengths == [0] for cache in target.caches)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_head_from_elsewhere_is_checked_when_it_is_opened(
    is_wrong: bool, target: HFTarget, trained: Callable[..., DraftHead], tmp_path: Path, monkeypatch: Any
) -> None:
    save_head(trained(), tmp_path, target)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    if is_wrong:
        config[IDS] = [layer - 1 for layer in config[IDS]]
    path.write_text(json.dumps(config))
    monkeypatch.setattr("outpace.api.opener.encode", lambda *rest: TEXT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ModelOpener(Model("target", target, object())).head(("eagle3",), tmp_path)  # ours is not checked
        del config[KEY]
        path.write_text(json.dumps(config))
        opener = ModelOpener(Model("target", target, object()))
        if not is_wrong:
            opener.head(("eagle3",), tmp_path)
            return
    with pytest.warns(
        UserWarning, match=rf"may be misread.*raise each number in {IDS} of its config.json by 1"
    ):
        opener.head(("eagle3",), tmp_path)
