"""The doctor's look at the model: tokenizer, chat template, tools, context window, weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import TurnwireError
from services.cli.finding import Finding
from services.preprocessor.ledger_probe import keeps_turns
from services.preprocessor.locality import open_history
from services.preprocessor.model import ModelSetup, choose_family
from services.preprocessor.probe import probe
from services.preprocessor.template import ChatTemplate
from services.preprocessor.tokens import PromptTokenizer
from services.preprocessor.traits import TemplateTraits
from services.runtime.config import PreprocessorConfig, WorkerConfig

_TOOL = {
    "type": "function",
    "function": {
        "name": "doctor_probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


def check(worker: WorkerConfig, preprocessor: PreprocessorConfig) -> Iterable[Finding]:
    """All that can be said of a model without loading its weights."""
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
    """Whether the chat template renders a tool into the prompt: an agent is nothing without."""
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
    """Which parser will read the model's output, and what tells so."""
    try:
        template = ChatTemplate.of(tokenizer, override=config.chat_template)
        found = choose_family(config, template, probe(template), tokenizer.get_added_vocab())
    except (TurnwireError, ValueError, OSError) as error:
        return Finding("fail", "parser", first_line(error))
    also = f"; {', '.join(other.name for other in found.also)} would do as well" if found.also else ""
    return Finding("ok", "parser", f"{found.family.name}: {'; '.join(found.evidence)}{also}")


def check_encoder(tokenizer: Any, config: PreprocessorConfig) -> Finding:
    """What encodes prompts, and whether it can do so in parts."""
    try:
        encoder = PromptTokenizer(tokenizer).encoder(config.tokenizer)
    except ValueError as error:
        return Finding("fail", "encoding", first_line(error))
    parts = f"cut at {len(encoder.cuts.tokens)} control tokens" if encoder.cuts else "each prompt whole"
    return Finding("ok", "encoding", f"{encoder.name} ({encoder.reason}); {parts}")


def check_rendering(tokenizer: Any, config: PreprocessorConfig) -> Finding:
    """Whether the template lets a prompt be rendered from where the last one ended."""
    try:
        template = ChatTemplate.of(tokenizer, override=config.chat_template)
    except (ValueError, OSError) as error:
        return Finding("fail", "rendering", first_line(error))
    off = open_history(template, probe(template), 1 << 20).off
    return Finding("ok", "rendering", off or "only what is new of a conversation")


def check_history(traits: TemplateTraits) -> Finding:
    """In which form the template gets what was said: told by trying it, at load."""
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
        return Finding("warn", "turns", "encoded anew with every prompt: the tokenizer is Python code")
    if "refused" in (keeps.loop, keeps.user):
        return Finding("warn", "turns", "the template refuses a small session with a call")
    if keeps.loop == "changed":
        return Finding("warn", "turns", "the template shows a call otherwise than it was made: it is prefilled again")
    if keeps.user == "changed":
        text = (
            "kept in a tool loop; when the user goes on, the template shows them otherwise and they are prefilled again"
        )
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
    asked = config.max_model_len
    if asked and trained and asked > trained:
        yield Finding("warn", "context", f"{asked} tokens are asked for, the model was made for {trained}")
    else:
        yield Finding("ok", "context", f"{asked or trained or 'unknown'} tokens")
    sizes = [file.stat().st_size for file in directory.iterdir() if file.suffix in (".safetensors", ".bin", ".gguf")]
    if sizes:
        yield Finding("ok", "weights", f"{sum(sizes) / 1e9:.1f} GB in {len(sizes)} files")
    else:
        wanted = config.engine != "script"
        yield Finding("fail" if wanted else "note", "weights", f"none in {directory}; the script engine needs none")


def window_of(settings: object) -> int | None:
    """The context window that a config.json tells, in the model's own part or the text model's."""
    if not isinstance(settings, dict):
        return None
    for part in (settings, settings.get("text_config")):
        if isinstance(part, dict) and isinstance(part.get("max_position_embeddings"), int):
            return int(part["max_position_embeddings"])
    return None


def first_line(error: BaseException) -> str:
    """An exception in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
