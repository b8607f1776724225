"""Checks the model: tokenizer, chat template, parser, history, context window, weights."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from schemas.errors import TurnwireError
from services.cli.doctor.finding import Finding, Status, first_line
from services.preprocessor.model import ModelSetup
from services.preprocessor.turn_keeping import try_turns
from services.runtime.config import PreprocessorConfig, WorkerConfig
from services.templates.chat_template import ChatTemplate
from services.templates.traits import TemplateTraits
from services.tokenization.model_files import read_facts

_ERRORS = (TurnwireError, ValueError, OSError)
_TOOL = {
    "type": "function",
    "function": {
        "name": "doctor_probe",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}


def check(worker: WorkerConfig, preprocessor: PreprocessorConfig) -> Iterable[Finding]:
    """Yields the findings of all checks that do not load the weights."""
    from transformers import AutoTokenizer

    if preprocessor.model != worker.model:
        yield Finding("warn", "model", f"the worker has {worker.model}, the preprocessor {preprocessor.model}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(preprocessor.model, trust_remote_code=preprocessor.trust_remote_code)
    except (OSError, ValueError) as error:
        yield Finding("fail", "tokenizer", f"{preprocessor.model}: {first_line(error)}")
        return
    yield Finding(
        "ok", "tokenizer", f"{type(tokenizer).__name__}, {len(tokenizer)} tokens, ends with {tokenizer.eos_token}"
    )
    yield _run_check("template", check_template, tokenizer, preprocessor)
    try:
        setup = ModelSetup.load(preprocessor)
    except _ERRORS as error:
        yield Finding("fail", "setup", first_line(error))
    else:
        yield Finding("ok", "parser", f"{setup.family.name}: {'; '.join(setup.evidence)}")
        encoder = setup.encoder
        parts = f"cut at {len(encoder.cuts.tokens)} control tokens" if encoder.cuts else "each prompt whole"
        yield Finding("ok", "encoding", f"{encoder.name} ({encoder.reason}); {parts}")
        yield Finding("ok", "history", describe_history(setup.traits))
        yield _run_check("turns", check_turns, setup)
    yield from check_directory(worker)


def _run_check(about: str, check: Callable[..., tuple[Status, str]], *arguments: Any) -> Finding:
    try:
        status, text = check(*arguments)
    except _ERRORS as error:
        status, text = "fail", first_line(error)
    return Finding(status, about, text)


def check_template(tokenizer: Any, config: PreprocessorConfig) -> tuple[Status, str]:
    """Checks whether the chat template renders tools into the prompt, which agents require."""
    template = ChatTemplate.of(tokenizer, override=config.chat_template)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    prompt = template.render(messages, tools=[_TOOL], variables=config.template_kwargs)
    if "doctor_probe" not in prompt:
        return "warn", "renders no tools: name another with --chat-template"
    return "ok", f"renders tools; the prompt ends with {prompt[-40:]!r}"


def describe_history(traits: TemplateTraits) -> str:
    """Describes how the template renders a conversation, from the results of probing it."""
    if traits.ordered:
        return "in order, as parts of one message"
    if traits.reasoning is not None:
        reasoning = f"read as {traits.reasoning}"
    elif traits.own_tags is not None:
        start, end = (tag.strip() for tag in traits.own_tags)
        reasoning = f"in the content between {start} and {end}, before calls"
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
        f"call ids {'as they came' if traits.call_ids == 'client' else 'by position'}",
    )
    return "; ".join(facts)


def check_turns(setup: ModelSetup) -> tuple[Status, str]:
    """Checks whether the tokens of a turn are a prefix of the next prompt (docs/ledger.md)."""
    keeps = try_turns(setup)
    if "refused" in (keeps.loop, keeps.user):
        return "warn", "the template refuses a small session with a call"
    if keeps.loop == "changed":
        return "warn", "the template renders a call differently: it is prefilled again"
    if keeps.user == "changed":
        text = "kept in a tool loop; with the next user message, the template renders them differently: prefilled again"
        return "ok", text
    return "ok", "kept, token for token"


def check_directory(config: WorkerConfig) -> Iterable[Finding]:
    """Checks context window and weights, if the model is a directory."""
    directory = Path(config.model)
    if not directory.is_dir():
        yield Finding("note", "weights", f"{config.model} is a hub id: they are downloaded when the engine starts")
        return
    try:
        trained = read_facts(config.model).window
    except (ValueError, OSError) as error:
        yield Finding("warn", "model", f"no readable config.json in {directory}: {first_line(error)}")
        return
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
