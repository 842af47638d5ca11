"""OpenVINO GenAI as a worker: plain decoding, a draft model or prompt lookup, through its scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
SETTINGS = {"top_k", "top_p", "min_p", "repetition_penalty"}
MOST_TOKENS = 1 << 16  # per forward: enough to prefill every prompt in one forward


def start(
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], list[list[int]]]]:
    """Compile the converted models, whose folders are in `settings`; returns the precision and a function
    that runs a request. ValueError for an unsupported dtype."""
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
    scheduler.enable_prefix_caching = False  # so that every prompt is prefilled, as by all contenders
    pipeline = genai.LLMPipeline(settings["target"], "CPU", scheduler_config=scheduler, **properties, **more)

    def run(request: Mapping[str, Any]) -> list[list[int]]:
        config = configuration(genai, settings, request)
        results = pipeline.generate(tokenized(genai, request["prompts"]), config).tokens
        return [[int(token) for token in tokens] for tokens in results]

    return {"precision": precision(settings["target"], properties)}, run


def configuration(genai: Any, settings: Mapping[str, Any], request: Mapping[str, Any]) -> Any:
    """A request as OpenVINO's GenerationConfig; NotImplementedError for a sampling parameter that OpenVINO
    lacks."""
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
    """Prompts as a left-padded batch with its attention mask."""
    numpy, tensor = import_module("numpy"), import_module("openvino").Tensor
    longest = max(map(len, prompts))
    ids = numpy.zeros((len(prompts), longest), dtype=numpy.int64)
    seen = numpy.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        seen[row, longest - len(prompt) :] = 1
    return genai.TokenizedInputs(tensor(ids), tensor(seen))


def precision(folder: str, properties: Mapping[str, Any]) -> str:
    """The precision in effect, such as `bf16, weights f32, cache f16`: inference, then matrix multiplications
    and KV cache where they differ.

    The pipeline does not expose its compiled model, so the target is compiled once more to query it.
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
    text = inference if multiplied == inference else f"{inference}, weights {multiplied}"
    return text if cache == inference else f"{text}, cache {cache}"


def short(kind: Any) -> str:
    """Short name of an OpenVINO type: `<Type: 'bfloat16'>` as bf16."""
    words = str(kind.get_type_name()) if hasattr(kind, "get_type_name") else str(kind)
    return words.replace("bfloat", "bf").replace("float", "f")
