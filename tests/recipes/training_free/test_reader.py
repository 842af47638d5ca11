"""READER: how large its tree is. What it shares with RASD is tested in `test_rasd_and_reader`."""

from __future__ import annotations

import torch

import outpace
from outpace.core.sampling_params import SamplingParams
from outpace.decode import Session
from outpace.recipes.training_free.reader import reader
from outpace.sampling.target_probs import LazyTargetProbs

CODE = "for name, value in sorted(table.items()):\n    print(name, value)\n" * 3


def test_the_number_of_nodes_is_as_given() -> None:
    target, draft = outpace.load("zoo:target"), outpace.load("zoo:draft")
    prompt = torch.tensor(target.tokenizer(CODE)["input_ids"])
    parts = reader.build(target.target, draft=draft.target, nodes=20)
    session = Session(parts, [prompt, prompt[:9]], [SamplingParams(max_tokens=32)] * 2, LazyTargetProbs)
    found = [step for step in session.steps() if step.scores.logits is not None]
    assert max(len(nodes) for step in found for nodes in step.draft.tree.forest.nodes) == 21
