"""Measure all published results: `python -m benchmarks.publish`, on a clean commit and an idle machine.

Each step writes one file into out/published, which git ignores, so that the checkout stays clean. A step
whose file was measured on the current commit is skipped, so that an interrupted run can be resumed; --only
selects single files, --list prints the commands. At the end the files are copied to docs/results, and the
pages, plots and README's table are written.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import front_page, prompt_sets, results
from outpace.bench.measure.provenance import commit

OUT = Path("out/published")  # relative to the checkout: result files record the command with this path
OUTPACE = Path(sys.executable).with_name("outpace")
ALL_PROMPTS = "--prompts code,arithmetic,edit"
# as the zoo's models, at the cost of larger ones: folder -> model, and columns of its MLPs
WIDER_MODELS = {
    "out/models/target-113m": ("zoo:target", 11776),
    "out/models/draft-12m": ("zoo:draft", 11776),
    "out/models/layerskip-113m": ("zoo:layerskip", 11776),
}
WIDER_TARGET = "out/models/target-113m"
WIDER_PAIR = "--target out/models/target-113m --draft out/models/draft-12m"
# vLLM loads folders
ZOO_PAIR = "--target outpace/zoo/weights/target --draft outpace/zoo/weights/draft"
LOAD = "--dtype bfloat16 --contenders plain,adaptive"
# adaptive drafts and `auto` beside drafts of one length: 15 to 20 minutes for each pair of models
STREAMS = (
    "--dtype bfloat16 --contenders 'plain,fixed 1,fixed 3,fixed,fixed 8,adaptive,auto' --concurrency 1,4,16"
)
BESIDE_VLLM = "--dtype bfloat16 --vllm {vllm} --vllm-options '--max-model-len 1024 --dtype bfloat16'"
HEADS = (
    "--compile --no-eager --dtype bfloat16 --methods speculative-sampling,eagle:tree=chain,"
    "eagle2:adaptive=true,eagle:head=zoo:hass:tree=chain,eagle2:head=zoo:hass:adaptive=true,"
    "eagle3:tree=chain:depth=5,eagle3:adaptive=true,medusa,hydra,mlp-speculator,redrafter "
    f"{ALL_PROMPTS} --num-prompts 6 --rounds 1 --max-tokens 96"
)
# draft heads for the wider target: folder -> head. They stay as they are, 3 % of the target: the share of a
# head with one layer where the target has 30
HEAD_COLUMNS = 1024
WIDER_HEADS = {f"out/models/{name}-113m": f"zoo:{name}" for name in ("eagle", "hass", "eagle3", "p-eagle")}
WIDER_METHODS = ",".join(
    f"{method}:head=out/models/{head}-113m"
    for method, head in (
        ("eagle:tree=chain", "eagle"),
        ("eagle2:adaptive=true", "eagle"),
        ("eagle:tree=chain", "hass"),
        ("eagle:tree=chain:depth=8", "hass"),
        ("eagle:tree=chain:depth=10", "hass"),
        ("auto", "hass"),
        ("eagle2:adaptive=true", "hass"),
        ("eagle3:tree=chain:depth=5", "eagle3"),
        ("eagle3:adaptive=true", "eagle3"),
    )
)
HEADS_OF_WIDER_TARGET = (
    f"{WIDER_PAIR} --compile --no-eager --dtype bfloat16 --methods speculative-sampling,"
    "speculative-sampling:depth=3,speculative-sampling:depth=8,speculative-sampling:depth=10,"
    f"{WIDER_METHODS} "
    f"{ALL_PROMPTS} --num-prompts 6 --rounds 1 --max-tokens 96"
)
# one forward for a block of drafts beside one for each of them
BLOCKS_OF_WIDER_TARGET = (
    f"{WIDER_PAIR} --compile --no-eager --dtype bfloat16 --methods "
    "speculative-sampling:depth=10,eagle:tree=chain:head=out/models/hass-113m,"
    "eagle:tree=chain:depth=10:head=out/models/hass-113m,auto:head=out/models/hass-113m,"
    "p-eagle:tree=chain:depth=5:head=out/models/p-eagle-113m,"
    "p-eagle:tree=chain:depth=8:head=out/models/p-eagle-113m,"
    "p-eagle:depth=8:adaptive=true:head=out/models/p-eagle-113m,auto:head=out/models/p-eagle-113m "
    f"{ALL_PROMPTS} --num-prompts 6 --rounds 1 --max-tokens 96"
)
# after equal training, in runs that share folders
HEADS_OF_1000_STEPS = "--steps 1000 --threads 1 --heads medusa,hydra,eagle,eagle2,hass,eagle3,eagle3-shuffled"
EQUAL_TRAINING = "--steps 300 --threads 1"
LATER_HEADS = f"{EQUAL_TRAINING} --heads eagle2,eagle3,jakiro,coral,falcon,gumiho,eagle3-longer,gto"
BLOCK_DRAFTERS = f"{EQUAL_TRAINING} --seeds 2 --heads eagle2,eagle3,parallelspec,p-eagle,dflash,ddtree,dspark"
BOTH_SOURCES = (
    "--compile --no-eager --dtype bfloat16 --methods speculative-sampling,eagle:tree=chain:head={head},"
    "prompt-lookup,suffix-decoding,lookup-or-draft,lookup-or-draft:head={head} "
    f"{ALL_PROMPTS} --num-prompts 6 --rounds 1 --max-tokens 96 --selection all"
)
PROMPT_SETS = "out/prompts"
KINDS = ("code", "edit", "arithmetic", "chat", "random")
AUTO = (
    "--compile --no-eager --methods auto,speculative-sampling,prompt-lookup,suffix-decoding --prompts "
    f"{','.join(f'{PROMPT_SETS}/{kind}.jsonl' for kind in KINDS)} --max-tokens 96 "
    "--num-prompts 40 --rounds 1 --selection all"
)
CONTROL = (
    "--compile --no-eager --methods speculative-sampling,speculative-sampling:depth=3,disco,smartspec,"
    "ucb-spec,exp3-spec,auto,lookup-or-draft,vocab-trim,eagle:tree=chain,fr-spec,scylla,taps --prompts "
    f"{','.join(f'{PROMPT_SETS}/{kind}.jsonl' for kind in ('code', 'edit', 'arithmetic', 'chat'))} "
    "--max-tokens 96 --num-prompts 8 --rounds 1 --selection all"
)
EXITS = ",".join(f"layerskip:exit_layer={layer}:depth={depth}" for layer in (2, 3) for depth in (1, 3, 5))
# without --dtype: float32 where the CPU has no arithmetic in bfloat16
SELF_SPECULATION = (
    f"--compile --no-eager --methods {EXITS},del-decoding,auto {ALL_PROMPTS} --num-prompts 6 --rounds 1 "
    "--max-tokens 96 --selection all"
)
ARITHMETIC = (
    "python -m zoo_training.prompts --output out/models/arithmetic.jsonl --number 600 --kinds arithmetic"
)
# predictors and drafters: folder -> the commands that train what is in it
TRAINED = {
    "out/models/sprinter": (
        "python -m zoo_training.prompts --output out/models/prompts.jsonl --number 400",
        "outpace train sprinter --target zoo:target --draft zoo:draft --data out/models/prompts.jsonl "
        "--set answers.max_tokens=64 --set steps=600 --set predictor.temperature=0 "
        "--output out/models/sprinter",
    ),
    "out/models/judge": (
        "python -m zoo_training.marked_answers --output out/models/marked.jsonl --number 1000",
        "outpace train judge-decoding --target zoo:target --data out/models/marked.jsonl "
        "--set capture.disk_gigabytes=1 --set steps=400 --set held_out=0.2 --output out/models/judge",
    ),
    # of one kind of requests, before a stream with others
    "out/models/arithmetic-draft": (
        ARITHMETIC,
        "outpace train distillspec --target zoo:target --draft zoo:draft --data out/models/arithmetic.jsonl "
        "--set answers.max_tokens=48 --set steps=400 --set optimizer.rate=3e-3 "
        "--output out/models/arithmetic-draft",
    ),
    "out/models/arithmetic-eagle3": (
        ARITHMETIC,
        "outpace train eagle3 --target zoo:target --data out/models/arithmetic.jsonl "
        "--set answers.max_tokens=48 --set steps=400 --set head.draft_vocab=2048 "
        "--output out/models/arithmetic-eagle3",
    ),
    "out/models/specbranch-113m": (
        "python -m zoo_training.prompts --output out/models/prompts.jsonl --number 400",
        f"outpace train specbranch {WIDER_PAIR} --data out/models/prompts.jsonl "
        "--set answers.max_tokens=64 --set texts=120 --set steps=300 --output out/models/specbranch-113m",
    ),
}
# LOSSY methods beside the exact ones that they relax, over the values of an option
OF_TWO_MODELS = {
    "cascades": ("speculative-cascades", "alpha=0.1,0.5"),
    "scd": ("scd", "beta=0.25,1"),
    "ead": ("ead", "tau=0.5,1,2"),
}
RELAXED = {
    "medusa": "medusa:num_nodes=15,medusa-typical:head=zoo:medusa:num_nodes=15 "
    f"--pareto epsilon=0.01,0.09,0.25 --temperature 0,0.7 {ALL_PROMPTS} --num-prompts 6 --rounds 1 "
    "--max-tokens 64",
    "cascades": "speculative-sampling,speculative-cascades --pareto alpha=-1,0.1,0.3,0.5,0.9 "
    f"--temperature 0,1 {ALL_PROMPTS} --num-prompts 10 --rounds 1 --max-tokens 96",
    "scd": "speculative-sampling,scd --pareto beta=0,0.25,0.5,1 "
    f"--temperature 0,1 {ALL_PROMPTS} --num-prompts 10 --rounds 1 --max-tokens 96",
    "ead": "speculative-sampling,ead --pareto tau=0,0.5,1,2 "
    f"--temperature 0,1 {ALL_PROMPTS} --num-prompts 10 --rounds 1 --max-tokens 96",
    "sprinter": "speculative-sampling,sprinter:predictor=out/models/sprinter "
    f"--pareto threshold=1,0.9,0.7,0.5 --temperature 0,1 {ALL_PROMPTS} --num-prompts 10 --rounds 1 "
    "--max-tokens 96",
    "judge": "speculative-sampling,judge-decoding:judge=out/models/judge "
    f"--pareto threshold=1,0.9,0.7,0.5 --temperature 0,1 {ALL_PROMPTS} --num-prompts 10 --rounds 1 "
    "--max-tokens 96",
}
# one core for each model
ON_ONE_CORE = (
    "--threads 1 --compile --no-eager --methods speculative-sampling:depth=5,speculative-sampling:depth=8,"
    "pearl:depth=5,pearl:depth=8,specbranch:predictor=out/models/specbranch-113m,duodecoding,double "
    f"{ALL_PROMPTS} --num-prompts 4 --rounds 1 --max-tokens 96 --selection all"
)
# target, middle and draft model, and further options of benchmarks.stages
STAGES = {
    "int4": f"{WIDER_TARGET} {WIDER_TARGET} zoo:draft --middle-weights int4",
    "int4-sampled": f"{WIDER_TARGET} {WIDER_TARGET} zoo:draft --middle-weights int4 --temperature 1",
    "between": f"{WIDER_TARGET} out/models/draft-12m zoo:draft",
    "useless": "zoo:target zoo:layerskip zoo:draft",
}
# beside other engines, with whole weights and with compressed ones
CPU_ENGINES = (
    "--compile --no-eager --dtype bfloat16 --methods speculative-sampling,eagle:tree=chain:head={head},"
    "prompt-lookup,prompt-lookup:depth=5,suffix-decoding,auto,auto:head={head} --prompts code,edit "
    "--max-tokens 96 --selection all --peer {{peers}}"
)
WEIGHTS = {
    "bfloat16": "",
    "int8": " --weights int8 --draft-weights int8",
    "int4": " --weights int4 --draft-weights int8",
}
FAMILY = "--family training-free --temperature 0,1 --max-tokens 96"

# file -> (program, its arguments); {peers}, {arctic} and {vllm} are replaced by the options of this program
STEPS: dict[str, tuple[str, str]] = {
    "engine/engine-cpu.json": (
        "bench",
        "--methods speculative-sampling,mcsd,specinfer,prompt-lookup,synthetic:rate=0.6,synthetic:rate=0.8 "
        f"{ALL_PROMPTS} --peer transformers --num-prompts 12 --rounds 2 --max-tokens 96",
    ),
    "engine/batch-cpu.json": (
        "bench",
        "--methods speculative-sampling,prompt-lookup --prompts code --peer transformers --num-prompts 32 "
        "--batch 8 --rounds 2 --max-tokens 96 --ignore-eos --selection all",
    ),
    "engine/overhead-cpu.json": ("overhead", "--target zoo:target --draft zoo:draft"),
    "revisions/revisions-cpu.json": ("revisions", "0efc1ff --num-prompts 10 --rounds 5"),
    "compiled/compiled-cpu.json": (
        "peers",
        "--compile --methods speculative-sampling,mcsd,prompt-lookup --prompts code,edit --peer {peers} "
        "--num-prompts 8 --rounds 2 --max-tokens 96 --selection all",
    ),
    "training-free/training-free-cpu.json": ("bench", f"{FAMILY} --num-prompts 6 --rounds 2"),
    "training-free/training-free-compiled-cpu.json": (
        "bench",
        f"--compile --no-eager {FAMILY} --num-prompts 6 --rounds 2",
    ),
    "training-free/edits-cpu.json": (
        "bench",
        "--compile --methods prompt-lookup,sam-decoding,suffix-decoding --prompts edit --num-prompts 20 "
        "--rounds 2 --max-tokens 96 --temperature 0 --selection all",
    ),
    "training-free/repeated-cpu.json": (
        "bench",
        f"--compile --no-eager --family training-free {ALL_PROMPTS} --num-prompts 6 --rounds 2 --repeat 2 "
        "--max-tokens 96 --temperature 0",
    ),
    "heads/heads-cpu.json": ("bench", HEADS),
    "heads/heads-113m-cpu.json": ("bench", HEADS_OF_WIDER_TARGET),
    "heads/orderings-cpu.json": ("head_orderings", HEADS_OF_1000_STEPS),
    "heads/later-heads-cpu.json": ("head_orderings", LATER_HEADS),
    "heads/experts-cpu.json": ("head_orderings", f"{EQUAL_TRAINING} --heads eagle,eagle2,jakiro,jakiro-star"),
    "blocks/blocks-113m-cpu.json": ("bench", BLOCKS_OF_WIDER_TARGET),
    "blocks/orderings-cpu.json": ("head_orderings", BLOCK_DRAFTERS),
    "recurrent/trees-cpu.json": ("recurrent_trees", ""),
    "learning/stream-cpu.json": (
        "learning_stream",
        "--contenders 'plain;draft, fixed;online-sd;head, fixed;aurora' --kinds 'arithmetic;code' "
        "--max-tokens 32 --draft out/models/arithmetic-draft --head out/models/arithmetic-eagle3",
    ),
    "learning/makespan-cpu.json": ("makespan", ""),
    "learning/makespan-113m-cpu.json": (
        "makespan",
        f"--target {WIDER_TARGET} --head out/models/hass-113m",
    ),
    "lookup-or-draft/lookup-or-draft-cpu.json": ("bench", BOTH_SOURCES.format(head="zoo:hass")),
    "lookup-or-draft/lookup-or-draft-113m-cpu.json": (
        "bench",
        f"{WIDER_PAIR} {BOTH_SOURCES.format(head='out/models/hass-113m')}",
    ),
    **{
        f"cpu-engines/{name}-cpu.json": (
            "peers",
            f"{CPU_ENGINES.format(head='zoo:hass')} --num-prompts 8 --rounds 2{options}",
        )
        for name, options in WEIGHTS.items()
    },
    **{
        f"cpu-engines-113m/{name}-113m-cpu.json": (
            "peers",
            f"{WIDER_PAIR} {CPU_ENGINES.format(head='out/models/hass-113m')} --num-prompts 6 --rounds 1"
            f"{options}",
        )
        for name, options in WEIGHTS.items()
    },
    "auto/auto-cpu.json": ("bench", AUTO),
    "auto/auto-113m-cpu.json": ("bench", f"{WIDER_PAIR} {AUTO}"),
    **{
        f"auto/auto-batch-{rows}-cpu.json": ("bench", f"{WIDER_PAIR} {AUTO} --batch {rows}")
        for rows in (4, 8)
    },
    "control/control-cpu.json": ("bench", CONTROL),
    "self-speculation/self-speculation-113m-cpu.json": (
        "bench",
        f"--target out/models/layerskip-113m {SELF_SPECULATION}",
    ),
    **{
        f"relaxed/{name}-cpu.json": (
            "bench",
            f"--compile --no-eager --dtype bfloat16 --methods {methods} --selection all",
        )
        for name, methods in RELAXED.items()
    },
    **{
        f"relaxed/{name}-113m-cpu.json": (
            "bench",
            f"{WIDER_PAIR} --compile --no-eager --dtype bfloat16 --methods speculative-sampling,{method} "
            f"--pareto {values} --temperature 0,1 {ALL_PROMPTS} --num-prompts 4 --rounds 1 --max-tokens 64 "
            "--selection all",
        )
        for name, (method, values) in OF_TWO_MODELS.items()
    },
    "overlap/one-core-each-cpu.json": ("bench", f"{WIDER_PAIR} {ON_ONE_CORE}"),
    "overlap/two-devices-cpu.json": (
        "overlap",
        f"{WIDER_PAIR} --methods pearl duodecoding double --compile --threads 1",
    ),
    **{
        f"stages/{name}-cpu.json": ("stages", f"{models} --compile --num-prompts 3 --max-tokens 64")
        for name, models in STAGES.items()
    },
    "weights/weights-cpu.json": ("weights", ""),
    "plan/plan-cpu.json": ("plan_accuracy", "--num-prompts 6 --max-tokens 48 --batch 1,2,4"),
    "plan/plan-113m-cpu.json": (
        "plan_accuracy",
        f"{WIDER_PAIR} --methods speculative-sampling,mcsd,prompt-lookup --num-prompts 5 --max-tokens 40 "
        "--batch 1,2,4",
    ),
    "memory/memory-cpu.json": ("memory", ""),
    "distillation/distillation-cpu.json": (
        "distillation",
        "--methods '' --seeds 3 --prompts 40 --draft-steps 6000",
    ),
    "draft-sizes/draft-sizes-cpu.json": ("draft_sizes", ""),
    "verification/verification-cpu.json": (
        "bench",
        "--methods speculative-sampling,block-verification,traversal,mcsd,specinfer,spectr-kseq,rsd-c,rsd-s,"
        f"optimal-mdsd,tli,slem,omnidraft,slrs:draft=zoo:draft-bytes {ALL_PROMPTS} --num-prompts 6 "
        "--rounds 2 --max-tokens 96",
    ),
    "verification/verifiers-cpu.json": ("verification_rules", "acceptance --draft zoo:draft"),
    "verification/verifiers-chain-cpu.json": (
        "verification_rules",
        "acceptance --draft zoo:draft --widths 1,1,1,1",
    ),
    "verification/rules-cpu.json": ("verification_rules", "times"),
    "serving/rates-cpu.json": ("serving", f"{LOAD} --rates 2,4,8,16 --seconds 4"),
    "serving/rates-113m-cpu.json": ("serving", f"{WIDER_PAIR} {LOAD} --rates 1,2 --seconds 4"),
    "serving/streams-cpu.json": ("serving", f"{STREAMS} --seconds 4 --rounds 11"),
    "serving/streams-113m-cpu.json": (
        "serving",
        f"{WIDER_PAIR} {STREAMS} --max-tokens 64 --seconds 4 --rounds 8",
    ),
    "serving-vllm/streams-cpu.json": ("serving", f"{ZOO_PAIR} {BESIDE_VLLM} --seconds 4 --rounds 7"),
    "serving-vllm-113m/streams-113m-cpu.json": (
        "serving",
        f"{WIDER_PAIR} {BESIDE_VLLM} --max-tokens 64 --seconds 6 --rounds 4",
    ),
    "in-vllm/in-vllm-cpu.json": ("in_vllm", "--vllm {vllm}"),
    "indexes/indexes-cpu.json": ("indexes", ""),
    "indexes/suffix-trees-cpu.json": ("suffix_trees", "--peer {arctic}"),
}

CPU_TIMED = ("indexes", "memory")  # timed in CPU time, which would count idle threads that spin


def command(program: str, arguments: str, file: Path, threads: int) -> list[str]:
    """The command line of a step, which writes `file`."""
    words = shlex.split(arguments)
    if program not in CPU_TIMED and "--threads" not in words:
        words += ["--threads", str(threads)]
    if program in ("bench", "peers"):
        start = [sys.executable, "-m", "benchmarks.peers"] if program == "peers" else [str(OUTPACE), program]
        return [*start, "--target", "zoo:target", *words, "--output", str(file)]
    return [sys.executable, "-m", f"benchmarks.{program}", *words, "--json", str(file)]


def is_current(file: Path, revision: str) -> bool:
    """Whether a file holds a complete measurement of this commit."""
    if not file.is_file():
        return False
    data = json.loads(file.read_text(encoding="utf-8"))
    return data["provenance"]["commit"] == revision and data.get("complete", True)


def main(
    peers: Annotated[
        str, typer.Option(help="Engines beside compiled models, such as transformers,openvino=...,vllm=...")
    ] = "transformers",
    arctic: Annotated[
        str, typer.Option(help="arctic=/path/to/python of an environment with arctic-inference.")
    ] = "arctic",
    vllm: Annotated[str, typer.Option(help="Python of an environment with vLLM.")] = "vllm/bin/python",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    only: Annotated[
        list[str] | None, typer.Option(help="A file to measure, or a folder of files; may be repeated.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the commands and their files.")] = False,
) -> None:
    """Measure every published file that was not measured on the current commit, then write the pages."""
    folders = {name.partition("/")[0] for name in STEPS}
    if unknown := set(only or ()) - set(STEPS) - folders:
        raise typer.BadParameter(f"{min(unknown)} is not published; --list shows the files")
    steps = {
        name: step
        for name, step in STEPS.items()
        if not only or name in only or name.partition("/")[0] in only
    }
    revision = commit() or ""
    os.chdir(results.ROOT)
    places = {"peers": peers, "arctic": arctic, "vllm": vllm}
    for name, (program, arguments) in steps.items():
        file = OUT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        words = command(program, arguments.format(**places), file, threads)
        if list_:
            typer.echo(f"{name}: {shlex.join([Path(words[0]).name, *words[1:]])}")
            continue
        if revision.endswith("+") or not revision:
            typer.echo(
                "publish: commit the changes first: results of a dirty checkout are not published", err=True
            )
            raise typer.Exit(2)
        if is_current(file, revision):
            typer.echo(f"{name} is current", err=True)
            continue
        typer.echo(f"measuring {name}", err=True)
        if any(PROMPT_SETS in word for word in words):
            prompt_sets.write(Path(PROMPT_SETS))
        for folder, (model, columns) in WIDER_MODELS.items():
            if folder in words and not Path(folder).exists():
                make = [sys.executable, "-m", "benchmarks.wider_models", model, folder, str(columns)]
                subprocess.run(make, check=True)
        for folder, head in WIDER_HEADS.items():
            if any(folder in word for word in words) and not Path(folder).exists():
                make = [sys.executable, "-m", "benchmarks.wider_models", head, folder]
                subprocess.run([*make, str(HEAD_COLUMNS), "--target", WIDER_TARGET], check=True)
        for folder, commands in TRAINED.items():
            if any(folder in word for word in words) and not Path(folder).exists():
                for line in commands:
                    first, *rest = shlex.split(line)
                    subprocess.run([str(Path(sys.executable).with_name(first)), *rest], check=True)
        environment = os.environ | ({"OMP_NUM_THREADS": "1"} if program in CPU_TIMED else {})
        subprocess.run(words, check=True, env=environment)
    if not list_:
        for name in steps:
            results.publish(OUT / name, results.RESULTS / f"{name}.gz")
        results.write(results.pages())
        front_page.main()


if __name__ == "__main__":
    typer.run(main)
