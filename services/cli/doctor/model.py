"""Checks the model: tokenizer, chat template, parser, history, context window, weights."""

from collections.abc import Iterable
from pathlib import Path

from schemas.errors import TurnwireError
from services.cli.doctor.report import Finding, FindingStatus, first_line
from services.cli.doctor.turn_keeping import try_turns
from services.preprocessor.model.model_setup import ModelSetup
from services.runtime.config.stages import PreprocessorConfig, WorkerConfig
from services.templates.traits import TemplateTraits
from services.tokenization.image_processor import ImageProcessor, NoVision, TextModel
from services.tokenization.model_files import read_facts
from services.worker.engines.registry import decodes_on_server

_ERRORS = (TurnwireError, ValueError, OSError)


def check_model(
    worker: WorkerConfig, preprocessor: PreprocessorConfig, served: int | None
) -> Iterable[Finding]:
    """Yields the findings of all checks that do not load the weights.

    `served`: the engine's context window in tokens; None: unknown before its start.
    """
    if preprocessor.model != worker.model:
        yield Finding(
            "warn", "model", f"the worker has {worker.model}, the preprocessor {preprocessor.model}"
        )
    try:
        setup = ModelSetup.load(preprocessor)
    except _ERRORS as error:
        yield Finding("fail", "model", f"{preprocessor.model}: {first_line(error)}")
        return
    encoder = setup.encoder
    parts = (
        f"cut at {len(encoder.cuts.tokens)} control tokens" if encoder.cuts else "each prompt whole"
    )
    tokens = (
        f"{setup.tokenizer.vocab_size} tokens, ends with "
        f"{setup.tokenizer.token_strings(setup.stop_ids)}"
    )
    yield Finding("ok", "tokenizer", f"{tokens}; {encoder.name} ({encoder.reason}); {parts}")
    engine = f"{setup.template.renderer.engine} ({setup.template.renderer.reason})"
    if setup.traits.inputs.tools:
        yield Finding("ok", "template", f"renders tools; {engine}")
    else:
        remedy = "renders no tools: name another with --chat-template"
        yield Finding("warn", "template", f"{remedy}; {engine}")
    yield Finding("ok", "parser", f"{setup.family.title}: {'; '.join(setup.evidence)}")
    yield Finding("ok", "history", describe_history(setup.traits))
    try:
        yield check_turns(setup)
    except _ERRORS as error:
        yield Finding("fail", "turns", first_line(error))
    yield check_images(preprocessor)
    yield check_context(worker, served)
    yield check_weights(worker)


def describe_history(traits: TemplateTraits) -> str:
    """Describes how the template renders a conversation, from the results of probing it."""
    if traits.ordered:
        return "in order, as parts of one message"
    if traits.reasoning is not None:
        reasoning = f"read as {traits.reasoning}"
    elif traits.reasoning_tags is not None:
        start, end = (tag.strip() for tag in traits.reasoning_tags)
        reasoning = f"in the content between {start} and {end}, before calls"
    else:
        reasoning = "left out"
    calls = {
        "object": "arguments as an object",
        "string": "arguments as a string",
        None: "written into the text",
    }
    system = {
        "anywhere": "in their place",
        "first": "marked, in a user message in their place",
        "none": "in the first user message",
    }
    several = {
        "inline": "in one message",
        "split": "as several messages",
        "drop": "with later reasoning left out",
    }
    results = "with" if traits.tool_role else "as user messages, without"
    call_ids = "as they came" if traits.calls.ids == "client" else "by position"
    facts = (
        f"reasoning {reasoning}",
        f"calls: {calls[traits.calls.arguments]}",
        f"results {results} a role of their own",
        f"later instructions {system[traits.system]}",
        f"reasoning between calls {several[traits.interleaved]}",
        f"call ids {call_ids}",
    )
    return "; ".join(facts)


def check_turns(setup: ModelSetup) -> Finding:
    """Checks whether the tokens of a turn are a prefix of the next prompt (docs/ledger.md)."""
    keeps = try_turns(setup)
    if "refused" in (keeps.loop, keeps.user):
        return Finding("warn", "turns", "the template refuses a small session with a call")
    if keeps.loop == "changed":
        return Finding(
            "warn", "turns", "the template renders a call differently: it is prefilled again"
        )
    if keeps.user == "changed":
        text = (
            "kept in a tool loop; with the next user message, the template renders them "
            "differently: prefilled again"
        )
        return Finding("ok", "turns", text)
    return Finding("ok", "turns", "kept, token for token")


def check_images(config: PreprocessorConfig) -> Finding:
    """Checks whether the model sees images. Whether the engine does is among its features."""
    try:
        processor = ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code)
    except TextModel:
        return Finding("note", "images", "the model sees none: a line in the prompt names each")
    except NoVision as error:
        return Finding("warn", "images", first_line(error))
    return Finding(
        "ok", "images", f"the model sees them as {processor.placeholder}, if the engine has vision"
    )


def check_context(config: WorkerConfig, served: int | None) -> Finding:
    """Checks the context window. `served`: that of the engine, in tokens; None: unknown."""
    try:
        trained = read_facts(config.model).window
    except (ValueError, OSError) as error:
        return Finding(
            "warn", "model", f"no readable config.json in {config.model}: {first_line(error)}"
        )
    limit = config.max_model_len
    if limit and trained and limit > trained:
        return Finding(
            "warn", "context", f"{limit} tokens are configured, the model was trained for {trained}"
        )
    if limit and served and limit > served:
        return Finding(
            "warn", "context", f"{limit} tokens are configured, the engine takes {served}"
        )
    window = min(filter(None, (limit, trained, served)), default=None)
    return Finding("ok", "context", f"{window or 'unknown'} tokens")


def check_weights(config: WorkerConfig) -> Finding:
    """Checks whether the engine finds its weights."""
    if decodes_on_server(config.engine):
        return Finding("note", "weights", "none needed: the inference server has loaded them")
    directory = Path(config.model)
    if not directory.is_dir():
        text = f"{config.model} is a hub id: they are downloaded when the engine starts"
        return Finding("note", "weights", text)
    sizes = [
        file.stat().st_size
        for file in directory.iterdir()
        if file.suffix in (".safetensors", ".bin", ".gguf")
    ]
    if sizes:
        return Finding("ok", "weights", f"{sum(sizes) / 1e9:.1f} GB in {len(sizes)} files")
    status: FindingStatus = "note" if config.engine == "script" else "fail"
    return Finding(status, "weights", f"none in {directory}; the script engine needs none")
