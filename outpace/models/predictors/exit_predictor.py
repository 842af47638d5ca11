"""SpecEE's predictor (Xu et al. 2025): whether the prediction after a layer is already the last layer's, from
the probabilities of a few candidate tokens.

Letters: M tokens, C candidates, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from outpace.core.contracts import Target, TargetWithLayers
from outpace.models.heads.draft_head import DraftHead
from outpace.models.heads.fingerprint import head_fingerprint, target_fingerprint
from outpace.models.heads.formats.files import HeadFileError, fill, read_files, write_files
from outpace.models.predictors.folder import HEAD, METHOD, TARGET
from outpace.models.predictors.predictor import PredictorError

NAME, TRAIN = "specee", "`outpace train specee --target TARGET --head HEAD --output FOLDER`"
NUM_CANDIDATES = 4
SPREAD = 2.0  # of untrained predictions, in logits


class ExitPredictor(nn.Module):
    """Two linear layers with a ReLU between them for each layer of the target but the last, on the features
    of `features`."""

    def __init__(self, num_exits: int, width: int = 512, layers: Sequence[int] = ()) -> None:
        """`layers`: those after which tokens often leave, counted from 1."""
        super().__init__()
        self.layers = frozenset(layers)
        size = 3 * NUM_CANDIDATES
        self.inner = nn.Parameter(torch.zeros(num_exits, size, width))
        self.inner_bias = nn.Parameter(torch.zeros(num_exits, width))
        self.output = nn.Parameter(torch.zeros(num_exits, width))
        self.output_bias = nn.Parameter(torch.zeros(num_exits))

        # fingerprints of the target and of the head that names candidates; None: no known ones
        self.trained_for: str | None = None
        self.trained_with: str | None = None

    @property
    def num_exits(self) -> int:
        return len(self.output_bias)

    def check(self, target: Target) -> None:
        """PredictorError if the predictor was made for another target."""
        fits = int(getattr(target, "num_layers", 0)) == self.num_exits + 1
        if fits and self.trained_for is not None and isinstance(target, TargetWithLayers):
            fits = target_fingerprint(target) == self.trained_for
        if not fits:
            raise PredictorError(
                f"the predictor was trained for another target, of {self.num_exits + 1} layers: give that "
                f"one, or train a predictor for this one with {TRAIN}"
            )

    def check_head(self, head: DraftHead) -> None:
        """PredictorError if the predictor was trained with candidates of another head."""
        if self.trained_with is not None and head_fingerprint(head) != self.trained_with:
            raise PredictorError(
                "the predictor was trained with another head: give that one, or train a predictor for this "
                f"one with {TRAIN}"
            )

    def log_odds(self, given: Tensor, layer: int) -> Tensor:  # (M, 3 C) -> (M,)
        """The logarithm of the odds that the most probable token after `layer` layers, counted from 1, is the
        last layer's."""
        index = layer - 1
        hidden = (given.to(self.inner) @ self.inner[index] + self.inner_bias[index]).relu()
        return hidden @ self.output[index] + self.output_bias[index]

    @torch.no_grad()
    def probability(self, given: Tensor, layer: int) -> Tensor:  # (M, 3 C) -> (M,)
        """The same as a probability."""
        return self.log_odds(given, layer).sigmoid()


def features(logits: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """(M, C) logits of the candidates after a layer -> (M, 3 C) logits, probabilities among the candidates
    and their change since the layer checked before; and these probabilities (M, C). `before`: those of that
    layer; None: this is the first."""
    logits = logits.to(torch.promote_types(torch.float32, logits.dtype))
    probs = logits.softmax(-1)
    given = torch.cat((logits, probs, probs if before is None else probs - before), -1)
    missing = 3 * NUM_CANDIDATES - given.shape[-1]  # a vocabulary of fewer tokens
    return nn.functional.pad(given, (0, missing)), probs


def untrained_exit_predictor(target: Target, seed: int = 0) -> ExitPredictor:
    """A predictor with random weights, whose predictions differ much between tokens and layers. It has exits
    for more layers than any target of a proof."""
    num_layers = int(getattr(target, "num_layers", 4))
    predictor = ExitPredictor(num_layers - 1, 32, range(1, num_layers, 2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in predictor.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        predictor.output *= SPREAD / predictor.output.shape[-1] ** 0.5
    return predictor.double().eval()


def save_exit_predictor(predictor: ExitPredictor, folder: str | Path) -> None:
    """Write a predictor; the folder is made if there is none."""
    config = {
        METHOD: NAME,
        "num_exits": predictor.num_exits,
        "width": predictor.output.shape[1],
        "layers": sorted(predictor.layers),
    }
    if predictor.trained_for is not None:
        config[TARGET] = predictor.trained_for
    if predictor.trained_with is not None:
        config[HEAD] = predictor.trained_with
    write_files(Path(folder), config, dict(predictor.named_parameters()))


def load_exit_predictor(folder: str | Path) -> ExitPredictor:
    """Read a predictor, in float32. PredictorError if the folder holds none."""
    if not isinstance(folder, str | Path) or not Path(folder).is_dir():
        raise PredictorError(
            f"there is no folder {folder} with a predictor of early exits: make one with {TRAIN}"
        )
    path = Path(folder)
    try:
        config, tensors = read_files(path)
        if config.get(METHOD) != NAME:
            raise HeadFileError(f"it names the method {config.get(METHOD)}")
        predictor = ExitPredictor(int(config["num_exits"]), int(config["width"]), config["layers"])
        fill(dict(predictor.named_parameters()), tensors, "the predictor that it describes")
    except (HeadFileError, KeyError, TypeError, ValueError) as error:
        raise PredictorError(
            f"{path} holds no predictor of early exits ({error}): make one with {TRAIN}"
        ) from error
    predictor.trained_for, predictor.trained_with = config.get(TARGET), config.get(HEAD)
    return predictor.eval()
