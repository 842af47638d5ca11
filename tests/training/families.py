"""The methods of `outpace train` by what they train."""

from __future__ import annotations

from outpace.models.predictors.exits.lesson import ExitPredictorMethod
from outpace.models.predictors.judge.lesson import JudgeMethod
from outpace.models.predictors.reveals.lesson import RevealMethod
from outpace.models.predictors.rollback.lesson import RollbackMethod
from outpace.models.predictors.trust.lesson import TrustMethod
from outpace.training.draft_methods import DraftMethod
from outpace.training.exit_methods import DraftExitMethod, TargetMethod
from outpace.training.head_methods import PositionHeadMethod
from outpace.training.methods import methods
from outpace.training.predictor_methods import AcceptanceMethod, HeadPredictorMethod


def _of(*types: type) -> list[str]:
    return [name for name, method in methods().items() if isinstance(method, types)]


METHODS = list(methods())
POSITION_HEADS = _of(PositionHeadMethod)
DRAFT_MODELS = _of(DraftMethod)
EXIT_MODELS = _of(DraftExitMethod)
ACCEPTANCE_PREDICTORS = _of(AcceptanceMethod)
JUDGES = _of(JudgeMethod)  # they learn from marked answers
TRUST_PREDICTORS = _of(TrustMethod)
ROLLBACK_PREDICTORS = _of(RollbackMethod)
PLANNERS = _of(RevealMethod)  # for draft models that fill windows
HEAD_PREDICTORS = _of(HeadPredictorMethod)
EXIT_PREDICTORS = _of(ExitPredictorMethod)
TARGETS = _of(TargetMethod)
GROWING = [name for name, method in methods().items() if method.grows]
