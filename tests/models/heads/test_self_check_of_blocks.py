"""Heads that draft in masks, trained for a few seconds and written in wrong conventions: the check names each
of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outpace.models.heads.block_states import block_states
from outpace.models.heads.dflash.head import DFlashHead
from outpace.models.heads.draft_head import head_config, random_weights
from outpace.models.heads.dspark.head import DSparkHead
from outpace.models.heads.p_eagle.head import PEagleHead, draw_mask
from outpace.models.heads.self_check import self_check
from outpace.models.hf.target import HFTarget
from outpace.training.packed import packed
from tests.models.heads.test_self_check import TAPS, Edit, checked, hidden_states
from tests.models.heads.test_self_check import TEXT as WHOLE
from tests.models.heads.test_self_check import target as target
from tests.tiers import only, slow

TEXT, STEPS, MASK, VOCAB = WHOLE[:100], 60, 60, 61
SOME = list(range(0, 60, 2))  # half of the tokens
Options = dict[str, Any]


def made(target: HFTarget, kind: str, options: Options) -> Any:
    given = {key: value for key, value in options.items() if key not in ("causal", "draft_ids")}
    ids = options.get("draft_ids")
    ids = None if ids is None else torch.tensor(ids)
    config = head_config(target, VOCAB if ids is None else len(ids))
    if kind == "p-eagle":
        head: Any = PEagleHead(config, target.embed, TAPS, mask_token=MASK)
        draw_mask(head, 3)
        random_weights(3, [head.fc, head.layers, head.lm_head])
        return head
    shared = config, target.embed, target.head, TAPS
    given = {"mask_token": MASK, "num_masks": 3, "draft_ids": ids} | given
    head = (
        DFlashHead(*shared, **given)
        if kind == "dflash"
        else DSparkHead(*shared, **given, vocab=VOCAB, rank=8)
    )
    random_weights(3, [head.fc, head.layers, *([] if ids is None else [head.lm_head])])
    generator = torch.Generator().manual_seed(3)
    for name, weight in head.own.items():
        if "norm" in name:  # so that each of them does something else
            weight.data.copy_(0.5 + 2 * torch.rand(weight.shape, generator=generator))
        if "markov" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=generator))
        if "v_proj" in name and "causal" in options:  # so that what a mask attends to matters
            weight.data.mul_(4)
    return head


def trained_on_text(target: HFTarget, kind: str, steps: int, options: Options) -> Any:
    """Learn the target's choices on TEXT by heart, as the first two tokens of a draft at each position."""
    head = made(target, kind, options)
    states, chosen = hidden_states(target, TEXT)
    hidden = torch.cat([states[layer] for layer in head.taps], -1)
    text, count = torch.tensor(TEXT), len(TEXT) - 2
    labels = chosen
    if head.draft_ids is not None:
        place = {int(token): index for index, token in enumerate(head.draft_ids)}
        labels = torch.tensor([place.get(int(token), -100) for token in chosen])
    columns = torch.arange(count)
    optimizer = torch.optim.Adam(head.own.values(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        features, loss = head.fuse(hidden)[None], torch.zeros(())
        if kind == "p-eagle":
            which = torch.ones(1, count + 1, dtype=torch.bool)
            which[0, -1] = False
            outputs = [step.outputs for step in packed(head, text[None], features, which, 2)]
        else:
            read = block_states(
                head, text[None], features, columns[None], causal=options.get("causal", False)
            )
            outputs = [head.norm(read[0, :, level + (not head.drafts_at_root)]) for level in range(2)]
        for level, states_of_level in enumerate(outputs):
            logits = head.given_tokens(head.lm_head(states_of_level), text[columns + 1 + level])
            aims = labels[1 + level :]
            loss = loss + functional.cross_entropy(logits[: len(aims)], aims)
        loss.backward()
        optimizer.step()
    return head.eval()


@pytest.fixture(scope="module")
def trained(target: HFTarget) -> Callable[..., Any]:
    """Heads with these options, each trained once."""
    found: dict[str, Any] = {}

    def head(kind: str, steps: int = STEPS, **options: Any) -> Any:
        key = f"{kind} {steps} {options}"
        if key not in found:
            found[key] = trained_on_text(target, kind, steps, options)
        return found[key]

    return head


HEADS = [
    ("dflash", {}),
    ("dspark", {"drafts_at_root": True}),
    slow("p-eagle", {}),
    slow("dflash", {"draft_ids": SOME}),
]


@pytest.mark.parametrize(("kind", "options"), HEADS)
def test_a_head_that_is_read_as_it_was_trained_has_no_findings(
    kind: str, options: Options, trained: Callable[..., Any], target: HFTarget, tmp_path: Path
) -> None:
    layout = "speculators" if options.get("draft_ids") else None
    found = checked(trained(kind, **options), target, tmp_path, lambda config, tensors: None, layout, TEXT)
    assert found.findings == () and found.num_drafts == len(TEXT) - 2
    share = 1.0
    if "draft_ids" in options:  # as many of the target's choices can be drafted
        share = torch.isin(hidden_states(target, TEXT)[1], torch.tensor(SOME)).double().mean().item()
    assert found.first > 0.9 * share and found.second > 0.5 * share, found


def conventions() -> dict[str, tuple[str, Options, Any, Edit]]:
    """Each wrong convention: kind and options of the head, layout, changes to its files."""

    def numbers_of_zlab(config: Any, tensors: dict[str, Tensor]) -> None:
        config["aux_hidden_state_layer_ids"] = list(TAPS)

    def numbers_of_speculators(config: Any, tensors: dict[str, Tensor]) -> None:
        config["dflash_config"]["target_layer_ids"] = [layer + 1 for layer in TAPS]

    def numbers_of_vllm(config: Any, tensors: dict[str, Tensor]) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = list(TAPS)

    def last_layer_first(config: Any, tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(3, -1)[::-1], -1)

    def nothing(config: Any, tensors: dict[str, Tensor]) -> None:
        """The files do not say that the blocks are causal."""

    def anchor_of_vllm(config: Any, tensors: dict[str, Tensor]) -> None:
        config["dspark_bonus_anchor"] = True

    def no_anchor(config: Any, tensors: dict[str, Tensor]) -> None:
        config["sample_from_anchor"] = True

    def norms(config: Any, tensors: dict[str, Tensor]) -> None:
        tensors["norm.weight"], tensors["hidden_norm.weight"] = (
            tensors["hidden_norm.weight"],
            tensors["norm.weight"],
        )

    def norms_of_layers(config: Any, tensors: dict[str, Tensor]) -> None:
        pair = [f"layers.0.{name}_layernorm.weight" for name in ("input", "post_attention")]
        tensors[pair[0]], tensors[pair[1]] = tensors[pair[1]], tensors[pair[0]]

    def matrices(config: Any, tensors: dict[str, Tensor]) -> None:
        pair = [f"markov_head.markov_w{number}.weight" for number in (1, 2)]
        tensors[pair[0]], tensors[pair[1]] = tensors[pair[1]], tensors[pair[0]]

    return {
        "layers +1": ("dflash", {}, "speculators", numbers_of_zlab),
        "layers -1": ("dflash", {}, "z-lab", numbers_of_speculators),
        "layers +1 of p-eagle": ("p-eagle", {}, "speculators", numbers_of_vllm),
        "layers reversed": ("dflash", {}, "z-lab", last_layer_first),
        "causal blocks": ("dflash", {"causal": True, "num_masks": 15}, "z-lab", nothing),
        "drafts at the root": ("dspark", {"drafts_at_root": True}, "deepspec", anchor_of_vllm),
        "drafts at the masks": ("dflash", {}, "speculators", no_anchor),
        "norm and hidden_norm swapped": ("dflash", {}, "z-lab", norms),
        "norms of layers swapped": ("dflash", {}, "z-lab", norms_of_layers),
        "markov_w1 and markov_w2 swapped": ("dspark", {"drafts_at_root": True}, "deepspec", matrices),
    }


QUICK = {"layers -1", "drafts at the root", "norm and hidden_norm swapped"}


@pytest.mark.parametrize("reading", only(QUICK, conventions()))
def test_a_wrong_convention_is_named(
    reading: str, trained: Callable[..., Any], target: HFTarget, tmp_path: Path
) -> None:
    kind, options, layout, edit = conventions()[reading]
    head = trained(kind, **options)
    found = checked(head, target, tmp_path, edit, layout, TEXT)
    [named] = found.findings
    assert named.reading == reading.removesuffix(" of p-eagle") and "\n" not in named.message
    assert named.configured == found.first and named.agreement > max(0.2, named.configured + 0.1)


@pytest.mark.parametrize("kind", [slow("dflash"), "dspark", slow("p-eagle")])
def test_a_head_that_has_learnt_little_has_no_findings(
    kind: str, trained: Callable[..., Any], target: HFTarget
) -> None:
    found = self_check(target, trained(kind, steps=10), TEXT)
    assert found.first < 0.8 and not found.findings
