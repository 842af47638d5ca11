"""The dtypes in which this CPU computes natively. PyTorch emulates others, which is slower than float32."""

from __future__ import annotations

import warnings
from functools import cache

import torch

# torch's names of the instructions that multiply in a dtype: two of x86-64, one of ARM
INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}


def is_native(dtype: torch.dtype) -> bool:
    """Whether PyTorch multiplies matrices of this dtype with instructions of this CPU."""
    if dtype not in INSTRUCTIONS:
        return True
    # oneDNN has the kernels; PyTorch for macOS lacks it and is fastest in float32
    if not torch.backends.mkldnn.is_available():
        return False
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in INSTRUCTIONS[dtype])


def found() -> list[torch.dtype]:
    """The native ones among float32, bfloat16 and float16."""
    return [dtype for dtype in (torch.float32, *INSTRUCTIONS) if is_native(dtype)]


def fastest_dtype() -> torch.dtype:
    """bfloat16 if it is native, else float32."""
    return torch.bfloat16 if is_native(torch.bfloat16) else torch.float32


def notice(chosen: torch.dtype, stored: torch.dtype | None, *, named: bool) -> str | None:
    """One sentence for the user of a model that is loaded in `chosen` from a checkpoint in `stored`; None if
    the CPU computes natively in both. `named`: the user named `chosen`."""
    if named and not is_native(chosen):
        name = str(chosen).removeprefix("torch.")
        return (
            f"this CPU has no arithmetic in {name}: PyTorch emulates it; --dtype float32 (dtype='float32') "
            "is faster, and takes twice the memory"
        )
    if not named and chosen == torch.float32 and stored in INSTRUCTIONS:
        name = str(stored).removeprefix("torch.")
        return (
            "this CPU has no arithmetic in bfloat16: models are loaded in float32, which takes twice the "
            f"memory of {name}; --dtype {name} (dtype={name!r}) keeps it, and is slower"
        )
    return None


def compiled_notice(name: str, dtype: torch.dtype, precision: torch.dtype) -> str | None:
    """One sentence for the user of a model with this name and dtype whose compiled forwards compute in
    `precision`, if that is another dtype."""
    own, other = (str(kind).removeprefix("torch.") for kind in (dtype, precision))
    if own == other:
        return None
    return (
        f"the compiled forwards of {name} compute in {other}, not in {own}: --dtype {other} "
        f"(dtype={other!r}) loads it so too"
    )


@cache  # Python repeats "once" warnings after filters change, as they do when a model is traced
def warn_once(message: str) -> None:
    """Warn with this message, once in a process."""
    warnings.warn(message, stacklevel=3)
