"""OpenVINO GenAI as a worker: plain, with a draft model, or with prompt lookup, through its own scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
SETTINGS = {"top_k", "top_p", "min_p", "repetition_penalty"}
MOST_TOKENS = 1 << 16  # in one forward: a prompt is read at once


def start(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], list[list[int]]]]:
    """Compile the models; `settings` names folders of converted ones."""
    if settings["dtype"] not in PRECISIONS:
        raise ValueError(f"OpenVINO has no {settings['dtype']}: use --dtype {', '.join(PRECISIONS)}")
    genai = import_module("openvino_genai")
    properties = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[settings["dtype"]],
        "KV_CACHE_PRECISION": PRECISIONS[settings["dtype"]],
        "INFERENCE_NUM_THREADS": int(settings["threads"]),
    }
    mode, more = settings["mode"], {}
    if mode == "draft":
        more["draft_model"] = genai.draft_model(settings["draft"], "CPU", **properties)
    elif mode == "prompt-lookup":
        more["prompt_lookup"] = True
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GiB
    scheduler.max_num_batched_tokens = MOST_TOKENS
    scheduler.enable_prefix_caching = False  # every contender runs the prefill of every prompt
    pipeline = genai.LLMPipeline(settings["target"], "CPU", scheduler_config=scheduler, **properties, **more)

    def run(request: Mapping[str, Any]) -> list[list[int]]:
        config = configuration(genai, settings, request)
        results = pipeline.generate(tokenized(genai, request["prompts"]), config).tokens
        return [[int(token) for token in tokens] for tokens in results]

    return {"precision": precision(settings["target"], properties)}, run


def configuration(genai: Any, settings: Mapping[str, Any], request: Mapping[str, Any]) -> Any:
    """A request as OpenVINO's GenerationConfig."""
    config = genai.GenerationConfig()
    config.max_new_tokens = request["max_tokens"]
    config.do_sample = request["temperature"] > 0
    config.rng_seed = request["seeds"][0]
    config.ignore_eos = not request["stop"]
    if request["stop"]:
        config.stop_token_ids = set(request["stop"])
    if config.do_sample:
        config.temperature = float(request["temperature"])
    for name, value in request["settings"].items():
        if name not in SETTINGS or not hasattr(config, name):
            raise NotImplementedError(f"OpenVINO GenAI has no {name}")
        setattr(config, name, value)
    if settings["mode"] != "plain":
        config.num_assistant_tokens = settings["depth"]
    if settings["mode"] == "prompt-lookup":
        config.max_ngram_size = settings["max_ngram"]
    return config


def tokenized(genai: Any, prompts: Sequence[Sequence[int]]) -> Any:
    """Prompts side by side, padded on the left."""
    numpy, tensor = import_module("numpy"), import_module("openvino").Tensor
    longest = max(map(len, prompts))
    ids = numpy.zeros((len(prompts), longest), dtype=numpy.int64)
    seen = numpy.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        seen[row, longest - len(prompt) :] = 1
    return genai.TokenizedInputs(tensor(ids), tensor(seen))


def precision(folder: str, properties: Mapping[str, Any]) -> str:
    """What the plugin made of the precision that was asked for, as the compiled model says, and that of the
    cache.

    The pipeline keeps its compiled model to itself, so the same model is compiled once more for the question.
    """
    compiled = (
        import_module("openvino").Core().compile_model(Path(folder) / "openvino_model.xml", "CPU", properties)
    )
    inference = short(compiled.get_property("INFERENCE_PRECISION_HINT"))
    kinds: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ops():
        facts = node.get_rt_info()
        if str(facts["layerType"].value) in ("FullyConnected", "MatMul"):
            kinds[str(facts["runtimePrecision"].value)] += 1
    multiplied = kinds.most_common(1)[0][0] if kinds else inference
    cache = short(compiled.get_property("KV_CACHE_PRECISION"))
    said = inference if multiplied == inference else f"{inference}, weights {multiplied}"
    return said if cache == inference else f"{said}, cache {cache}"


def short(kind: Any) -> str:
    """`<Type: 'bfloat16'>` as bf16."""
    words = str(kind.get_type_name()) if hasattr(kind, "get_type_name") else str(kind)
    return words.replace("bfloat", "bf").replace("float", "f")
