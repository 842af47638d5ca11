"""Lets a server's drafter learn in a process of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from outpace.core.contracts import Parts
from outpace.drafters.learning.online_learning import LearningDrafter
from outpace.drafters.learning.trainer import LocalTrainer
from outpace.serving.learning import weights_file
from outpace.serving.learning.trainer_process import Settings, TrainerProcess


def learner_of(methods: Mapping[str, Parts]) -> LearningDrafter:
    """The drafter that learns; ValueError unless there is exactly one."""
    found = [parts.drafter for parts in methods.values() if isinstance(parts.drafter, LearningDrafter)]
    if len(found) != 1:
        raise ValueError(
            f"--learn needs one drafter that learns, and {', '.join(methods)} "
            f"{'has' if len(methods) == 1 else 'have'} {len(found) or 'none, or several'}: choose a method "
            "that has one, as --method online-sd or --method aurora"
        )
    return found[0]


def learn_apart(
    drafter: LearningDrafter, folder: Path, belongs_to: Mapping[str, Any], cpus: Collection[int] = ()
) -> TrainerProcess:
    """Go on from the weights in the folder, if there are any, and compute all updates in another process,
    which saves them there. `belongs_to`: what says, as JSON values, whose weights these are. ValueError for
    weights of another drafter or that are no numbers, and for a folder that cannot be written to."""
    versions = drafter.learning.versions
    trainer = versions.trainer
    assert isinstance(trainer, LocalTrainer)
    learned = weights_file.load(folder, belongs_to, versions.current.weights)
    if learned is not None:
        versions.restore(learned.version, learned.weights)
    weights_file.check_writable(folder)
    made = TrainerProcess(drafter.learning, trainer, Settings(folder, belongs_to, cpus))
    versions.trainer = made
    return made
