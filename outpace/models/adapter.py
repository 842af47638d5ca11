"""Models stored as an adapter to another checkpoint: low-rank changes of its weights (LoRA, Hu et al. 2022)
in the files of the PEFT library."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
IN_FILES = "base_model.model."  # prefix of the names of weights in an adapter's file
EXIT_LAYER = "outpace_exit_layer"  # configuration key: number of first layers that were trained to draft


def base_of(name: str) -> str | None:
    """The checkpoint that the adapter in this folder was made for; None if the folder holds no adapter.
    ValueError if the adapter does not name it, or without the library."""
    file = Path(name) / CONFIG
    if not file.is_file() or (file.parent / "config.json").is_file():
        return None
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{file} is not a JSON object: download the adapter again") from error
    if not base:
        raise ValueError(f"{file} does not name the adapter's model: add base_model_name_or_path")
    _check_installed(name)
    return base


def merged(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    """The model with the adapter's changes added to its weights, which are overwritten. ValueError if the
    adapter does not fit the model or cannot be read."""
    from peft import PeftModel

    if not (Path(folder) / WEIGHTS).is_file():
        raise ValueError(f"the adapter {folder} has no {WEIGHTS}: download it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, about PEFT's own calls
            warnings.filterwarnings("ignore", f".*{EXIT_LAYER}")  # a key that PEFT does not know
            adapted: Any = PeftModel.from_pretrained(model, folder)
            merged_model: PreTrainedModel = adapted.merge_and_unload()
    except (ValueError, RuntimeError, AttributeError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise ValueError(f"the adapter {folder} does not fit {model.name_or_path} ({reason})") from error
    config = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
    if EXIT_LAYER in config:
        setattr(merged_model.config.get_text_config(), EXIT_LAYER, config[EXIT_LAYER])
    return merged_model


def with_low_rank_changes(model: PreTrainedModel, base: str, rank: int) -> PreTrainedModel:
    """The model, changed in place: all its linear layers except the LM head get low-rank changes, initially
    without effect, and only these are trainable. `base`: its name, for the adapter's files. ValueError if
    PEFT is not installed."""
    _check_installed("exits.rank")
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules="all-linear",
        exclude_modules=["lm_head"],
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    model.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # as above
        changed: Any = inject_adapter_in_model(config, model)
    return changed


def has_adapter(model: nn.Module) -> bool:
    """Whether a model has been given low-rank changes that are not merged."""
    return hasattr(model, "peft_config")


def save_adapter(model: Any, folder: Path) -> None:
    """Write the model's low-rank changes, and the exit at which it was trained to draft, to a folder."""
    from peft import get_peft_model_state_dict

    model.peft_config["default"].save_pretrained(str(folder))
    if (layer := getattr(model.config.get_text_config(), EXIT_LAYER, None)) is not None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8")) | {EXIT_LAYER: layer}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    own = get_peft_model_state_dict(model, save_embedding_layers=False)
    weights = {f"{IN_FILES}{name}": tensor for name, tensor in own.items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _check_installed(what: str) -> None:
    if find_spec("peft") is None:
        raise ValueError(f"{what} needs peft: pip install 'outpace[adapters]'")
