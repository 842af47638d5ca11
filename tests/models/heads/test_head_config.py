"""The layers of a head have the sizes and frequencies of the target's layers with full attention."""

from __future__ import annotations

import pytest

from outpace.models.fingerprint import target_fingerprint
from outpace.models.heads.draft_head import head_config
from outpace.models.heads.eagle.head import untrained_eagle
from outpace.models.hf.forward_memory import ForwardMemory
from outpace.models.hf.target import HFTarget
from tests.models.conftest import SHARED_KEYS, build


def test_layers_of_two_sizes() -> None:
    """Gemma 4's layers with full attention have larger heads; transformers raises an error if the size of
    heads is read from the whole configuration."""
    target = HFTarget(build("gemma4_text", **SHARED_KEYS))
    made = head_config(target, 61)
    assert (made.head_dim, made.num_attention_heads, made.num_key_value_heads) == (12, 4, 2)
    assert len(target_fingerprint(target)) == 64
    assert ForwardMemory.of(target).token > 0
    untrained_eagle(target)


def test_a_list_of_sizes() -> None:
    assert head_config(HFTarget(build("gemma3n_text")), 61).intermediate_size == 48


@pytest.mark.parametrize(
    ("name", "rope"),
    [
        ("llama", {"rope_theta": 1234.0}),
        (
            "gemma3_text",
            {
                kind: {"rope_type": "default", "rope_theta": theta}
                for kind, theta in {"sliding_attention": 10.0, "full_attention": 1234.0}.items()
            },
        ),
        ("phi3", {"rope_theta": 1234.0, "partial_rotary_factor": 0.5}),
    ],
)
def test_rotary_frequencies_are_those_of_full_attention_in_all_dimensions(name: str, rope: dict) -> None:
    """Other entries would be read differently by other engines, and not at all by the head."""
    target = HFTarget(
        build(name, rope_parameters={"rope_type": "default"} | rope if name != "gemma3_text" else rope)
    )
    assert head_config(target, 61).rope_parameters == {"rope_type": "default", "rope_theta": 1234.0}
