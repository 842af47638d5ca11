"""Peak figures of GPUs and CPUs, from the makers' data sheets, and what of them decoding reaches."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("hardware.toml")
GIGA, TERA = 1e9, 1e12
# Assumed of all hardware: shares of the peaks that forwards reach, and the time between kernels. A step of a
# model of 8B parameters in bfloat16 on an H100 takes about 6 to 7 ms with CUDA graphs; its weights alone need
# 4.8 ms at the peak.
BANDWIDTH_REACHED, FLOPS_REACHED = 0.8, 0.6
LAUNCH_SECONDS = 20e-6  # of a layer, about ten kernels that are launched from a recorded graph


@dataclass(frozen=True)
class Hardware:
    """A GPU or CPU by its peak figures. `memory` is None for CPUs, which have as much as is built in."""

    name: str
    title: str
    bandwidth: float  # bytes per second
    flops: Mapping[str, float]  # torch dtype, such as "bfloat16" -> operations per second
    memory: float | None  # bytes
    source: str  # address of the data sheet, or what the user gave
    bandwidth_reached: float = BANDWIDTH_REACHED
    flops_reached: float = FLOPS_REACHED
    launch_seconds: float = LAUNCH_SECONDS

    def flops_of(self, dtype: str) -> float:
        """Peak operations per second in this dtype; float16 is as fast as bfloat16. ValueError if it is not
        known."""
        found = self.flops.get("bfloat16" if dtype == "float16" else dtype)
        if found is None:
            known = ", ".join(sorted(self.flops))
            raise ValueError(
                f"the peak of {self.title} in {dtype} is not known, only that in {known}: give --dtype"
            )
        return found

    def assumptions(self, dtype: str) -> str:
        """What is assumed of it, as one sentence."""
        return (
            f"{self.title} has peaks of {self.bandwidth / GIGA:g} GB/s and "
            f"{self.flops_of(dtype) / TERA:g} TFLOPS in {dtype} ({self.source}), of which "
            f"{self.bandwidth_reached:.0%} and {self.flops_reached:.0%} are reached, and takes "
            f"{1e6 * self.launch_seconds:g} microseconds per layer to launch kernels."
        )


@cache
def known_hardware() -> Mapping[str, Hardware]:
    """The table, by name."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: Hardware(
            name,
            row["title"],
            GIGA * row["bandwidth"],
            {dtype: TERA * peak for dtype, peak in row["tflops"].items()},
            GIGA * row["memory"] if "memory" in row else None,
            row["source"],
        )
        for name, row in rows.items()
    }


def hardware(name: str) -> Hardware:
    """The device of this name; ValueError, with all names, if the table has none."""
    found = known_hardware().get(name.lower())
    if found is None:
        raise ValueError(
            f"the table has no hardware {name!r} but {', '.join(known_hardware())}: name one of these, give "
            "the peaks with --bandwidth and --flops, or leave all three out to measure this machine"
        )
    return found


def own_hardware(bandwidth: float, tflops: float, memory: float | None, dtype: str) -> Hardware:
    """A device that the table lacks, from its peaks: GB/s, TFLOPS in `dtype`, GB."""
    flops = {"bfloat16" if dtype == "float16" else dtype: TERA * tflops}
    return Hardware(
        "own",
        "the hardware given",
        GIGA * bandwidth,
        flops,
        None if memory is None else GIGA * memory,
        "as given",
    )
