"""Loads a model for transformers' continuous batching: device, threads, weights, cache."""

import dataclasses
import os
import sys
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from schemas.errors import Invalid
from services.runtime.config.stages import WorkerConfig
from services.tokenization.image_processor import ImageProcessor, NoVision
from services.tokenization.model_files import ModelFacts, read_facts, read_json
from services.worker.engine import KV_LIMIT, EngineInfo, EngineSupport
from services.worker.engines.memory import available_bytes, cpu_kv_tokens
from services.worker.engines.registry import installed_engines
from services.worker.engines.transformers import adapter

MAX_THREADS = 8
DEFAULT_WINDOW = 4096


class LoadedModel(Struct, frozen=True):
    """A model that is ready to decode, with a generation thread that was not started yet."""

    manager: Any
    """`ContinuousBatchingManager`, its cache allocated and its CUDA graphs captured."""
    facts: ModelFacts
    info: EngineInfo
    rows: Any = None
    """`rows.Rows`, if tokens are sampled and steps run without CUDA graphs."""
    images: Any = None
    """`image_features.Images`, if the model gets images."""


def load_model(config: WorkerConfig, args: adapter.EngineArgs) -> LoadedModel:
    """Loads the model; blocks until it is loaded. Propagates errors of torch and transformers."""
    torch, transformers = _import_libraries()
    facts = read_facts(config.model)
    _refuse_recurrent(config.model)
    device = _find_device(torch, config.device)
    if device.type == "cpu":
        _prepare_cpu(torch, args)
    model = _model(torch, transformers, config, args, device)
    window = config.max_model_len or facts.window or DEFAULT_WINDOW
    kv_tokens, limit = _kv_tokens(model, device, config, window)

    manager, rows = _manager(model, config, args, kv_tokens)
    # Allocates the cache and captures CUDA graphs here, where an exception reaches the caller.
    manager.warmup()
    is_guided = rows is not None and _load_guides(rows, manager, config)
    graphs = _has_graphs(device, args)
    images, no_vision = _open_images(manager, config, graphs=graphs)

    lacks = adapter.lacking(args, graphs=graphs, guided=is_guided, no_vision=no_vision)
    info = _describe(manager, facts, config, window=window, limit=limit, lacks=lacks)
    return LoadedModel(manager, facts, info, rows, images)


def explain(config: WorkerConfig) -> EngineSupport:
    """Explains the engine (`EngineSupport`) without loading the model."""
    args = adapter.parse_args(config.engine_args)
    if find_spec("torch") is None:
        raise Invalid(
            "torch is not installed: in a clone, pip install -e '.[torch]'", param="engine"
        )
    import torch
    from transformers import __version__

    graphs = _has_graphs(_find_device(torch, config.device), args)
    no_vision = None
    if config.model:
        _refuse_recurrent(config.model)
        no_vision = _no_vision(config, graphs=graphs)
    is_guided = find_spec("llguidance") is not None
    lacks = adapter.lacking(args, graphs=graphs, guided=is_guided, no_vision=no_vision)
    return EngineSupport(__version__, adapter.ALL_FEATURES - set(lacks), lacks)


def _import_libraries() -> tuple[Any, Any]:
    """Returns torch and transformers."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when OpenMP is loaded
    import torch
    import transformers

    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return torch, transformers


def _has_graphs(device: Any, args: adapter.EngineArgs) -> bool:
    """Returns whether steps may run as CUDA graphs."""
    return device.type != "cpu" and adapter.has_graphs(args.batching)


def _prepare_cpu(torch: Any, args: adapter.EngineArgs) -> None:
    from services.worker.engines.transformers import attention

    torch.set_num_threads(args.threads or _cpu_threads())
    attention.install()


def _model(
    torch: Any, transformers: Any, config: WorkerConfig, args: adapter.EngineArgs, device: Any
) -> Any:
    dtype: Any = config.dtype
    if dtype != "auto":
        dtype = getattr(torch, dtype)
    options: dict[str, Any] = {
        "attn_implementation": args.attn_implementation,
        "dtype": dtype,
        "trust_remote_code": config.trust_remote_code,
        **args.model_kwargs,
    }
    auto = _auto_class(transformers, config)
    if args.load_format == "dummy":
        if args.seed is not None:
            torch.manual_seed(args.seed)
        model_config = _model_config(transformers, config)
        if dtype == "auto":
            options["dtype"] = getattr(model_config, "dtype", None) or torch.float32
        return auto.from_config(model_config, **options).to(device).eval()

    model = auto.from_pretrained(config.model, **options)
    if "device_map" not in options:
        model = model.to(device)
    return model.eval()


def _model_config(transformers: Any, config: WorkerConfig) -> Any:
    return transformers.AutoConfig.from_pretrained(
        config.model, trust_remote_code=config.trust_remote_code
    )


def _auto_class(transformers: Any, config: WorkerConfig) -> Any:
    """Returns the library's class that loads the model: with its vision tower, unless it is a
    causal language model."""
    if "vision_config" in (read_json(config.model, "config.json") or {}):
        kind = type(_model_config(transformers, config))
        causal = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        images = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        if kind in images and kind not in causal:
            return transformers.AutoModelForImageTextToText
    return transformers.AutoModelForCausalLM


def _image_processor(config: WorkerConfig, *, graphs: bool) -> ImageProcessor:
    """Returns the model's processor of images. Raises NoVision."""
    processor = ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code)
    if graphs:
        raise NoVision(adapter.GRAPHS)
    return processor


def _no_vision(config: WorkerConfig, *, graphs: bool) -> str | None:
    """Returns why the model gets no images, by its files; None if it gets them."""
    try:
        _image_processor(config, graphs=graphs)
    except NoVision as reason:
        return str(reason)
    return None


def _open_images(manager: Any, config: WorkerConfig, *, graphs: bool) -> tuple[Any, str | None]:
    """Returns `image_features.Images`; or None, and why the model gets no images."""
    try:
        return _images(manager, config, graphs=graphs), None
    except NoVision as reason:
        return None, str(reason)


def _images(manager: Any, config: WorkerConfig, *, graphs: bool) -> Any:
    """Returns `image_features.Images`. Raises NoVision."""
    processor = _image_processor(config, graphs=graphs)
    model = manager.model
    if not hasattr(model, "get_image_features") or not hasattr(model.config, "image_token_id"):
        raise NoVision(f"transformers has no features of images for {type(model).__name__}")
    from services.worker.engines.transformers.image_features import Images

    images = Images(model, processor)
    gap = images.gap()
    if gap is not None:
        raise NoVision(gap)
    images.follow(manager.batch_processor.inputs_and_outputs)
    return images


def _manager(
    model: Any, config: WorkerConfig, args: adapter.EngineArgs, kv_tokens: int | None
) -> tuple[Any, Any]:
    """Makes the library's manager, and the rows of its requests if steps run without CUDA
    graphs."""
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    on_cpu = model.device.type == "cpu"
    fields = {field.name for field in dataclasses.fields(ContinuousBatchingConfig)}
    options = adapter.batching_options(
        args, slots=config.slots, kv_tokens=kv_tokens, on_cpu=on_cpu, fields=fields
    )
    sampling = args.mode == "sampling"
    # Neutral values, so that the library adds no processors; each request has its end tokens.
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if sampling else {}
    generation = GenerationConfig(do_sample=sampling, eos_token_id=-1, **neutral)  # type: ignore[no-untyped-call]
    manager = model.init_continuous_batching(
        generation_config=generation, continuous_batching_config=ContinuousBatchingConfig(**options)
    )
    if not sampling:
        return manager, None
    from services.worker.engines.transformers.sampler import install

    if not on_cpu and adapter.has_graphs(options):
        install(manager.logit_processor, eager=False)
        return manager, None
    from services.worker.engines.transformers.rows import LogprobCollector, Rows, Shaper

    rows = Rows()
    install(
        manager.logit_processor, eager=True, before=[Shaper(rows)], after=[LogprobCollector(rows)]
    )
    return manager, rows


def _load_guides(rows: Any, manager: Any, config: WorkerConfig) -> bool:
    """Gives the rows their guides. Returns False where there are none: llguidance is not installed,
    or cannot read the tokenizer."""
    from services.worker.engines.guide import load_guides

    rows.guides = load_guides(
        config.model, _vocabulary(manager), trust_remote_code=config.trust_remote_code
    )
    return rows.guides is not None


def _describe(
    manager: Any,
    facts: ModelFacts,
    config: WorkerConfig,
    *,
    window: int,
    limit: str,
    lacks: dict[str, str],
) -> EngineInfo:
    from transformers import __version__

    cache = manager.batch_processor.cache
    resolved = manager.continuous_batching_config
    page = getattr(resolved, "page_size", None) or resolved.block_size
    capacity = (cache.num_blocks - 1) * page
    shares = bool(cache.use_prefix_sharing)
    if not shares:
        lacks = lacks | {"prefix_cache": "not every layer has full attention"}
    return EngineInfo(
        name="transformers",
        version=__version__,
        max_model_len=min(window, capacity),
        slots=config.slots,
        block_tokens=page if shares else None,
        kv_tokens=capacity,
        eos_ids=facts.eos_ids,
        features=adapter.ALL_FEATURES - set(lacks),
        vocab_size=_vocabulary(manager),
        lacking=lacks,
        full_len=window,
        limit=limit,
    )


def _vocabulary(manager: Any) -> int:
    return int(manager.model.get_input_embeddings().num_embeddings)


def _refuse_recurrent(model: str) -> None:
    """Raises Invalid, which names other engines, for a model with layers that the library cannot
    batch."""
    kind = adapter.recurrent_layers(read_json(model, "config.json") or {})
    if kind is None:
        return
    installed = installed_engines()
    engines = [f"--engine {name}" for name in ("trtllm", "vllm") if name in installed]
    raise Invalid(
        f"transformers cannot batch the {kind} layers of {model}: use {' or '.join(engines)}",
        param="engine",
    )


def _find_device(torch: Any, name: str) -> Any:
    """Returns the device of this name; `auto`: the best available."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _cpu_threads() -> int:
    """Returns OMP_NUM_THREADS if set; else all cores but one, which the event loop and the rest
    need."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        return int(threads)
    all_but_one = len(os.sched_getaffinity(0)) - 1
    return max(1, min(MAX_THREADS, all_but_one))


def _kv_tokens(
    model: Any, device: Any, config: WorkerConfig, window: int
) -> tuple[int | None, str]:
    """Returns the capacity of the KV cache, in tokens (None: the library's own choice), and what
    limits it."""
    if config.kv_tokens is not None or device.type != "cpu":
        return config.kv_tokens, KV_LIMIT
    return cpu_kv_tokens(_kv_bytes_per_token(model), window, available_bytes())


def _kv_bytes_per_token(model: Any) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width * model.dtype.itemsize)
