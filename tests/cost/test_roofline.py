"""Forwards by a device's peaks: golden values, thresholds, and what of a model they depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outpace.cost.hardware import Hardware, hardware, known_hardware, own_hardware
from outpace.cost.model_size import AttentionLayer, ModelSize
from outpace.cost.roofline import ACTIVATIONS, Roofline

IDEAL = Hardware("ideal", "ideal", 1e12, {"bfloat16": 1e14}, 1e11, "", 1.0, 1.0, 0.0)
LAYER = AttentionLayer(num_heads=32, num_kv_heads=8, head_size=128)
SIZE = ModelSize(32, 4096, 128256, 7.5e9, 0.5e9, (LAYER,) * 32)  # of a Llama with 8B parameters


def test_one_token_waits_for_the_weights() -> None:
    seconds = Roofline(SIZE, IDEAL)(1, 1, 0)
    assert seconds == pytest.approx(7.5e9 * 2 / 1e12, rel=1e-3)
    assert Roofline(replace(SIZE, weights="int8"), IDEAL)(1, 1, 0) == pytest.approx(
        seconds * 8.25 / 16, rel=1e-3
    )
    assert Roofline(replace(SIZE, weights="int4"), IDEAL)(1, 1, 0) == pytest.approx(
        seconds * 4.25 / 16, rel=1e-3
    )


def test_tokens_are_free_up_to_the_ridge_and_cost_their_arithmetic_beyond() -> None:
    roofline = Roofline(SIZE, IDEAL)
    assert roofline.ridge == pytest.approx(
        1e14 * 2 / (2 * 1e12)
    )  # FLOPS * bytes / (2 * bandwidth) = 100 tokens
    activations = 32 * 4096 * ACTIVATIONS * 2 / 1e12
    assert roofline.matrices(90) == pytest.approx(roofline.matrices(1) + 89 * activations)
    assert roofline.matrices(200) == pytest.approx(2 * 200 * 7.5e9 / 1e14)
    assert roofline.matrices(400) == 2 * roofline.matrices(200)


def test_attention_reads_the_cache_of_every_row_once_for_all_its_tokens() -> None:
    roofline = Roofline(SIZE, IDEAL)
    per_token = 2 * 32 * 8 * 128 * 2  # 2 * layers * kv_heads * head_dim * bytes: 131 kB
    assert SIZE.kv_bytes(1) == per_token == 131072
    assert roofline.attention(8, 8, 999) == pytest.approx(8 * 1000 * per_token / 1e12)
    assert roofline.attention(32, 8, 996) == pytest.approx(8 * 1000 * per_token / 1e12)
    # grouped heads are computed one by one: 4 * n * L * heads * head_dim * layers
    assert roofline.attention(8000, 8, 1000) == pytest.approx(4 * 8000 * 2000 * 32 * 128 * 32 / 1e14)


def test_layers_with_a_window_keep_the_window_alone() -> None:
    windowed = replace(SIZE, attention=(LAYER, replace(LAYER, window=100)))
    assert windowed.kv_bytes(1000) == 1100 * LAYER.kv_elements * 2
    assert windowed.kv_bytes(50) == 100 * LAYER.kv_elements * 2
    seconds = Roofline(windowed, IDEAL).attention(1, 1, 999)
    assert seconds == pytest.approx(1100 * LAYER.kv_elements * 2 / 1e12)


def test_more_tokens_need_more_experts() -> None:
    size = ModelSize(48, 2048, 151936, 1e9, 0, (), 28e9, num_experts=128, experts_per_token=8)
    assert size.experts_hit(1) == pytest.approx(1 / 16)
    assert size.experts_hit(16) == pytest.approx(1 - (15 / 16) ** 16)
    assert size.experts_hit(1000) == pytest.approx(1)
    roofline = Roofline(size, IDEAL)
    assert roofline.matrices(1) == pytest.approx((1e9 + 28e9 / 16) * 2 / 1e12, rel=2e-3)
    assert roofline.matrices(16) / roofline.matrices(1) > 6  # a draft is not free: unlike with one MLP
    assert size.weight_bytes == 29e9 * 2


def test_every_device_has_a_source_and_plausible_peaks() -> None:
    for name, each in known_hardware().items():
        assert each.source.startswith("https://") and name == name.lower() == each.name
        # a byte of weights is worth 10 to 700 operations on everything that is sold
        assert 10 < each.flops_of("bfloat16") / each.bandwidth < 700
        assert each.flops_of("float16") == each.flops_of("bfloat16")
    assert hardware("H100-SXM").bandwidth == 3.35e12 and hardware("h100-sxm").memory == 80e9
    assert "3350 GB/s and 989 TFLOPS" in hardware("h100-sxm").assumptions("bfloat16")


def test_a_device_that_the_table_lacks_can_be_given() -> None:
    with pytest.raises(ValueError, match=r"no hardware 'h300' but a100-40gb, .*--bandwidth and --flops"):
        hardware("h300")
    own = own_hardware(100, 2, 16, "float16")
    assert (own.bandwidth, own.flops_of("bfloat16"), own.memory) == (100e9, 2e12, 16e9)
    with pytest.raises(ValueError, match="is not known, only that in bfloat16: give --dtype"):
        own.flops_of("float32")
