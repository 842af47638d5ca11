"""Runs llama.cpp's converter, also for tokenizers that it does not know:
`python convert_to_gguf.py CONVERT_HF_TO_GGUF.py ARGUMENTS`.

The converter recognises a tokenizer by what it makes of a sample text, and refuses all others. The benchmark
sends token ids, so how llama.cpp would split a text does not matter: an unknown tokenizer gets GPT-2's rule.
"""

from __future__ import annotations

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

RULE = "gpt-2"


def main(converter: Path, arguments: list[str]) -> None:
    sys.path.insert(0, str(converter.parent))
    models = import_module("conversion.base").TextModel
    known = models.get_vocab_base_pre

    def rule_of(self: Any, tokenizer: Any) -> str:
        try:
            return known(self, tokenizer)
        except NotImplementedError:
            return RULE

    models.get_vocab_base_pre = rule_of
    sys.argv = [str(converter), *arguments]
    runpy.run_path(str(converter), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
