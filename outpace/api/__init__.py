"""The Python interface: load a target model and generate text with a speculative decoding method."""

from outpace.api.generate import generate, generate_each, stream
from outpace.api.logprobs import Logprob
from outpace.api.model import Model, load
from outpace.api.row_output import Piece, Result
from outpace.api.speculative_config import parse_speculative_config
from outpace.api.statistics import Statistics
from outpace.api.stream import Stream

__all__ = [
    "Logprob",
    "Model",
    "Piece",
    "Result",
    "Statistics",
    "Stream",
    "generate",
    "generate_each",
    "load",
    "stream",
    "parse_speculative_config",
]
