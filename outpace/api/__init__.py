"""The Python interface: load a target model and generate text with a speculative decoding method."""

from outpace.api.generate import generate, generate_each, stream
from outpace.api.logprobs import Logprob
from outpace.api.model import Model, load
from outpace.api.row_output import Piece, Result
from outpace.api.speculative_config import parse_speculative_config
from outpace.api.statistics import Statistics
from outpace.api.stream import Stream
from outpace.api.vote import Branch, Vote, vote
from outpace.api.vote_plan import Problem, VotePlan, plan_votes

__all__ = [
    "Branch",
    "Logprob",
    "Model",
    "Piece",
    "Problem",
    "Result",
    "Statistics",
    "Stream",
    "Vote",
    "VotePlan",
    "generate",
    "generate_each",
    "load",
    "stream",
    "vote",
    "parse_speculative_config",
    "plan_votes",
]
