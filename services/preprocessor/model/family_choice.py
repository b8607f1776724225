"""Chooses the family of a model: by the operator's settings, else by the files of the model."""

from collections.abc import Iterable

from services.families import Family, find_family, find_reasoning_family
from services.families.markup_evidence import Detection
from services.families.response_template import template_name
from services.runtime.config.stages import PreprocessorConfig
from services.templates.chat_template import ChatTemplate
from services.templates.detection import detect_family, unread_calls
from services.templates.traits import TemplateTraits
from services.tokenization.model_files import read_json, read_response_template

_NO_CALLS = (
    "no evidence: the chat template writes no calls; tool_call_parser names the model's format"
)


def choose_family(
    config: PreprocessorConfig,
    template: ChatTemplate,
    traits: TemplateTraits,
    tokens: Iterable[str],
) -> Detection:
    """The family that the operator chose, else the one with the parser that reads the template's
    calls, else the model's own description of its output (`response_template`).

    A tool-call parser's name takes precedence over a family's. A reasoning parser's name replaces
    the reasoning of the family, named or detected. Raises ValueError where no parser reads the
    template's calls, UnknownFamily for an unknown name or a pair that cannot be read,
    InvalidResponseTemplate for a description that cannot be followed, and OSError if its file
    cannot be read.
    """
    reasoning: Family | None = None
    if config.reasoning_parser is not None:
        reasoning = find_reasoning_family(config.reasoning_parser)
    if config.response_template is not None:
        return _described_family(config.model, config.response_template)

    name = config.tool_call_parser or None
    if name is None and config.family != "auto":
        name = config.family
    if name is not None:
        detection = Detection(find_family(name), ("the operator's choice",))
    else:
        detection = _detected_family(config, template, traits, tokens)
    if reasoning is None:
        return detection
    evidence = f"reasoning of {reasoning.name}: the operator's choice"
    pair = find_family(f"{detection.family.name}+{reasoning.name}")
    return Detection(pair, (*detection.evidence, evidence), detection.also)


def _described_family(model: str, file: str) -> Detection:
    """The family that a file of the operator describes."""
    description = read_response_template(model, file) or ""
    evidence = f"{file}: the operator's choice"
    return Detection(find_family(template_name(description)), (evidence,))


def _detected_family(
    config: PreprocessorConfig,
    template: ChatTemplate,
    traits: TemplateTraits,
    tokens: Iterable[str],
) -> Detection:
    description: str | None = None
    if config.reasoning_parser is None:
        description = read_response_template(config.model)
    facts = read_json(config.model, "config.json") or {}
    detection = detect_family(template, traits, facts, tokens, description)
    if detection is not None:
        return detection
    if traits.calls.arguments is not None:
        unread = unread_calls(template, traits)
        raise ValueError(f"no parser reads the tool calls of {config.model}: {unread}")

    family = find_family(config.reasoning_parser or "hermes")
    if not family.style.call:
        family = find_family("hermes")
    return Detection(family, (_NO_CALLS,))
