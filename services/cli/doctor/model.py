"""Checks the model: tokenizer, chat template, parser, history, context window, weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import TurnwireError
from services.cli.doctor.finding import Finding
from services.preprocessor.ledger_probe import keeps_turns
from services.preprocessor.model import ModelSetup, choose_family
from services.preprocessor.prompt.locality import open_history
from services.runtime.config import PreprocessorConfig, WorkerConfig
from services.templates.chat_template import ChatTemplate
from services.templates.probe import probe
from services.templates.traits import TemplateTraits
from services.tokenization.prompt_tokenizer import PromptTokenizer

_TOOL = {
    "type": "function",
    "function": {
        "name": "doctor_probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


def check(worker: WorkerConfig, preprocessor: PreprocessorConfig) -> Iterable[Finding]:
    """All checks that do not load the weights."""
    from transformers import AutoTokenizer

    model = worker.model
    if preprocessor.model != model:
        yield Finding("warn", "model", f"the worker has {model}, the preprocessor {preprocessor.model}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(preprocessor.model, trust_remote_code=preprocessor.trust_remote_code)
    except (OSError, ValueError) as error:
        yield Finding("fail", "tokenizer", f"{preprocessor.model}: {first_line(error)}")
        return
    yield Finding(
        "ok", "tokenizer", f"{type(tokenizer).__name__}, {len(tokenizer)} tokens, ends with {tokenizer.eos_token}"
    )
    yield check_template(tokenizer, preprocessor)
    yield check_family(tokenizer, preprocessor)
    yield check_encoder(tokenizer, preprocessor)
    yield check_rendering(tokenizer, preprocessor)
    try:
        setup = ModelSetup.load(preprocessor)
    except (TurnwireError, ValueError, OSError) as error:
        yield Finding("fail", "history", first_line(error))
    else:
        yield check_history(setup.traits)
        yield check_turns(setup)
    yield from check_directory(worker)


def check_template(tokenizer: Any, config: PreprocessorConfig) -> Finding:
    """Whether the chat template renders tools into the prompt, which agents require."""
    try:
        template = ChatTemplate.of(tokenizer, override=config.chat_template)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        prompt = template.render(messages, tools=[_TOOL], variables=config.template_kwargs)
    except (TurnwireError, ValueError, OSError) as error:
        return Finding("fail", "template", first_line(error))
    if "doctor_probe" not in prompt:
        return Finding("warn", "template", "renders no tools: name another with --chat-template")
    return Finding("ok", "template", f"renders tools; the prompt ends with {prompt[-40:]!r}")


def check_family(tokenizer: Any, config: PreprocessorConfig) -> Finding:
    """The parser for the model's output, and the evidence for it."""
    try:
        template = ChatTemplate.of(tokenizer, override=config.chat_template)
        found = choose_family(config, template, probe(template), tokenizer.get_added_vocab())
    except (TurnwireError, ValueError, OSError) as error:
        return Finding("fail", "parser", first_line(error))
    also = f"; {', '.join(other.name for other in found.also)} would fit too" if found.also else ""
    return Finding("ok", "parser", f"{found.family.name}: {'; '.join(found.evidence)}{also}")


def check_encoder(tokenizer: Any, config: PreprocessorConfig) -> Finding:
    """The encoder of prompts, and whether it encodes them in parts."""
    try:
        encoder = PromptTokenizer(tokenizer).encoder(config.tokenizer)
    except ValueError as error:
        return Finding("fail", "encoding", first_line(error))
    parts = f"cut at {len(encoder.cuts.tokens)} control tokens" if encoder.cuts else "each prompt whole"
    return Finding("ok", "encoding", f"{encoder.name} ({encoder.reason}); {parts}")


def check_rendering(tokenizer: Any, config: PreprocessorConfig) -> Finding:
    """Whether a prompt can be rendered from the end of the previous one."""
    try:
        template = ChatTemplate.of(tokenizer, override=config.chat_template)
    except (ValueError, OSError) as error:
        return Finding("fail", "rendering", first_line(error))
    off = open_history(template, probe(template), 1 << 20).off
    return Finding("ok", "rendering", off or "only the new part of a conversation")


def check_history(traits: TemplateTraits) -> Finding:
    """The form in which the template renders a conversation, found by probing it."""
    if traits.ordered:
        return Finding("ok", "history", "in order, as parts of one message")
    if traits.reasoning is not None:
        reasoning = f"read as {traits.reasoning}"
    elif traits.own_tags is not None:
        reasoning = (
            f"in the content between {traits.own_tags[0].strip()} and {traits.own_tags[1].strip()}, before calls"
        )
    else:
        reasoning = "left out"
    calls = {"object": "arguments as an object", "string": "arguments as a string", None: "written into the text"}
    system = {
        "anywhere": "in their place",
        "first": "marked, in a user message in their place",
        "none": "in the first user message",
    }
    several = {"inline": "in one message", "split": "as several messages", "drop": "with later reasoning left out"}
    facts = (
        f"reasoning {reasoning}",
        f"calls: {calls[traits.arguments]}",
        f"results {'with' if traits.tool_role else 'as user messages, without'} a role of their own",
        f"later instructions {system[traits.system]}",
        f"reasoning between calls {several[traits.interleaved]}",
        f"call ids {'as they came' if traits.call_ids == 'given' else 'by position'}",
    )
    return Finding("ok", "history", "; ".join(facts))


def check_turns(setup: ModelSetup) -> Finding:
    """Whether the tokens of a turn come back as the prefix of the next prompt (docs/ledger.md)."""
    try:
        keeps = keeps_turns(setup)
    except (TurnwireError, ValueError, OSError) as error:
        return Finding("fail", "turns", first_line(error))
    if keeps is None:
        return Finding("warn", "turns", "encoded again with every prompt: the tokenizer is Python code")
    if "refused" in (keeps.loop, keeps.user):
        return Finding("warn", "turns", "the template refuses a small session with a call")
    if keeps.loop == "changed":
        return Finding("warn", "turns", "the template renders a call differently: it is prefilled again")
    if keeps.user == "changed":
        text = "kept in a tool loop; with the next user message, the template renders them differently: prefilled again"
        return Finding("ok", "turns", text)
    return Finding("ok", "turns", "kept, token for token")


def check_directory(config: WorkerConfig) -> Iterable[Finding]:
    """Context window and weights, where the model is a directory."""
    directory = Path(config.model)
    if not directory.is_dir():
        yield Finding("note", "weights", f"{config.model} is a hub id: they are downloaded when the engine starts")
        return
    try:
        settings = msgspec.json.decode((directory / "config.json").read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        yield Finding("warn", "model", f"no readable config.json in {directory}: {first_line(error)}")
        return
    trained = window_of(settings)
    limit = config.max_model_len
    if limit and trained and limit > trained:
        yield Finding("warn", "context", f"{limit} tokens are configured, the model was trained for {trained}")
    else:
        yield Finding("ok", "context", f"{limit or trained or 'unknown'} tokens")
    sizes = [file.stat().st_size for file in directory.iterdir() if file.suffix in (".safetensors", ".bin", ".gguf")]
    if sizes:
        yield Finding("ok", "weights", f"{sum(sizes) / 1e9:.1f} GB in {len(sizes)} files")
    else:
        required = config.engine != "script"
        yield Finding("fail" if required else "note", "weights", f"none in {directory}; the script engine needs none")


def window_of(settings: object) -> int | None:
    """The context window in a config.json, at the top or in the part of the text model."""
    if not isinstance(settings, dict):
        return None
    for part in (settings, settings.get("text_config")):
        if isinstance(part, dict) and isinstance(part.get("max_position_embeddings"), int):
            return int(part["max_position_embeddings"])
    return None


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
