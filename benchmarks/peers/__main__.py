"""`outpace bench` beside OpenVINO GenAI, vLLM and llama.cpp: `python -m benchmarks.peers --peer vllm=PYTHON`.

All options, tables and files are those of `outpace bench`; --peer also takes openvino=/path/to/python,
vllm=/path/to/python and llamacpp=/path/to/llama-server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import typer

from benchmarks.peers.environments import check_device, find_environments, parse_peers
from benchmarks.peers.rows import PeerLauncher
from benchmarks.peers.worker import Worker, close_all
from outpace.bench.measure.contender import Contender, MethodContender
from outpace.bench.measure.models import BenchModels, FurtherPeers, StartedPeers
from outpace.cli.commands.bench import bench


def find_peers(texts: Sequence[str], device: str | None) -> FurtherPeers:
    """What starts the engines of these values of --peer beside the methods. ValueError if one is not
    installed."""
    peers = parse_peers(texts)
    environments = find_environments(peers, device)

    def start(
        models: BenchModels, methods: Sequence[MethodContender], needed_tokens: int, batch: int
    ) -> StartedPeers:
        check_device(peers, models.used_device)
        workers: list[Worker] = []
        models.stack.callback(close_all, workers)
        launcher = PeerLauncher(
            names={"target": models.target, "draft": models.draft},
            dtype=models.dtype_name,
            weights={"target": models.weights, "draft": models.draft_weights},
            threads=torch.get_num_threads(),
            needed_tokens=needed_tokens,
            max_length=models.model.max_length,
            batch=batch,
            environment=os.environ,
            on_message=models.on_message,
            register=workers.append,
            seconds=models.load_seconds,
        )
        rows: list[Contender] = [row for each in environments for row in launcher.rows(each, methods)]
        versions = {name: version for each in environments for name, version in each.versions.items()}
        return StartedPeers(rows, versions, launcher.failed)

    return start


app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(bench)

if __name__ == "__main__":
    app(obj=find_peers, prog_name="python -m benchmarks.peers")
