"""Loads a model's tokenizer, template and configuration for the preprocessor."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.control import THINKING_BUDGET, VISION, ModelCard
from schemas.conversation import EFFORTS, Sampling, ToolSpec
from schemas.frames import ThoughtBudget
from services.families import Family, family, reasoning_family
from services.families.detection import Detection
from services.families.response_template import template_name
from services.preprocessor.thoughts import unlimited_thoughts
from services.runtime.config import MIB, PreprocessorConfig
from services.runtime.memo import Memo
from services.templates.chat_template import ChatTemplate
from services.templates.control_tokens import data_marks
from services.templates.detection import detect_family, unread_calls
from services.templates.probe import image_frame, own_tags, probe
from services.templates.tools import PromptTools
from services.templates.traits import TemplateTraits
from services.tokenization.encoder import Encoder
from services.tokenization.image_processor import ImageProcessor
from services.tokenization.model_files import (
    find_file,
    read_facts,
    read_json,
    read_response_template,
)
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.tokenizer_files import load_tokenizer

OBJECT_FACTOR = 8
"""Memory of tools in bytes per byte of their JSON."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class ModelSetup:
    """Everything that is needed to make prompts for one model: immutable settings, and a cache of
    tools in their forms.

    Shared by all threads."""

    template: ChatTemplate
    traits: TemplateTraits
    tokenizer: PromptTokenizer
    encoder: Encoder
    family: Family
    evidence: tuple[str, ...]
    """Why this family was chosen."""
    max_model_len: int
    """Context window in tokens, prompt and output together: the operator's setting, else that of
    the files."""
    window_cap: int | None
    """The operator's setting, which a worker's larger window does not raise."""
    stop_ids: tuple[int, ...]
    """Ids that end a turn."""
    sampling: Sampling
    """The model's defaults, for values that a client does not set."""
    template_kwargs: dict[str, Any]
    """The operator's template variables."""
    strip_preamble: bool
    cache_bytes: int
    """Bound of the cached tools, in bytes of their JSON."""
    card: ModelCard
    images: ImageProcessor | None
    """None: the model gets a note for each image."""
    blindness: str
    """Why that is so; "" for a model that sees images."""
    thoughts: ThoughtBudget | None
    """The budget of reasoning tokens, without a limit; None: the family reads no reasoning."""
    _tools: Memo[PromptTools] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tools", Memo(self.cache_bytes))

    @classmethod
    def load(cls, config: PreprocessorConfig) -> "ModelSetup":
        """Reads tokenizer, template and configuration of a directory or hub id, and probes the
        template.

        Raises OSError where files cannot be read, ValueError where they or the operator's settings
        are invalid (no template, an unknown family, no context window).
        """
        facts = read_facts(config.model)
        loaded = load_tokenizer(config.model, trust_remote_code=config.trust_remote_code)
        template = ChatTemplate.of(loaded, override=config.chat_template, model=config.model_name)
        traits = probe(template)
        tokenizer = PromptTokenizer(loaded, eos_ids=facts.eos_ids)
        detection = choose_family(config, template, traits, loaded.get_added_vocab())
        found = detection.family
        marks = (
            None if config.control_tokens_in_data else data_marks(loaded, template, traits, found)
        )
        encoder = tokenizer.encoder(config.tokenizer, config.prompt_cache_mb << 20, marks)
        traits = replace(traits, own_tags=own_tags(template, traits, found))
        window = config.max_model_len or facts.window
        if window is None:
            raise ValueError(f"{config.model} states no context window; set max_model_len")
        images, blindness = _images(config)
        if images is not None and (frame := image_frame(template, images.placeholder)) is not None:
            traits = replace(traits, image=frame)
        elif images is not None:
            images, blindness = None, "its chat template renders no images"
        thoughts = unlimited_thoughts(tokenizer, found, traits.separators[1])
        features = [
            *([THINKING_BUDGET] if thoughts else []),
            *([VISION] if images is not None else []),
        ]
        return cls(
            template=template,
            traits=traits,
            tokenizer=tokenizer,
            encoder=encoder,
            family=found,
            evidence=detection.statement,
            max_model_len=window,
            window_cap=config.max_model_len,
            stop_ids=_stop_ids(tokenizer, traits, found),
            sampling=facts.sampling,
            template_kwargs=config.template_kwargs,
            strip_preamble=config.strip_anthropic_preamble,
            cache_bytes=config.prompt_cache_mb * MIB // OBJECT_FACTOR,
            card=_card(config, traits, found, window, features),
            images=images,
            blindness=blindness,
            thoughts=thoughts,
        )

    def tools_of(self, tools: list[ToolSpec]) -> PromptTools:
        """The forms of a request's tools; cached for the next request with the same tools. Raises
        RecursionError for schemas that are nested too deeply to be written."""
        marks = self.encoder.marks
        marker = marks.data if marks is not None else None
        return self._tools.get(_encode(tools), lambda data: PromptTools.of(tools, data, marker))

    def window(self, worker: int | None) -> int:
        """The effective window. The workers' window (None: not known yet) takes precedence over the
        one in the files."""
        if worker is None:
            return self.max_model_len
        return worker if self.window_cap is None else min(worker, self.window_cap)


def _images(config: PreprocessorConfig) -> tuple[ImageProcessor | None, str]:
    """The processor of a model that sees images, else why there is none."""
    try:
        found = ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        return None, f"its image processor cannot be loaded: {error}"
    return found, "" if found is not None else "it is a text model"


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
    named = config.tool_call_parser or (config.family if config.family != "auto" else None)
    reasoning = (
        reasoning_family(config.reasoning_parser) if config.reasoning_parser is not None else None
    )
    if config.response_template is not None:
        description = read_response_template(config.model, config.response_template) or ""
        return Detection(
            family(template_name(description)),
            (f"{config.response_template}: the operator's choice",),
        )
    if named is not None:
        found: Detection | None = Detection(family(named), ("the operator's choice",))
    else:
        described = read_response_template(config.model) if reasoning is None else None
        found = detect_family(
            template, traits, read_json(config.model, "config.json") or {}, tokens, described
        )
    if found is None and traits.arguments is not None:
        raise ValueError(
            f"no parser reads the tool calls of {config.model}: {unread_calls(template, traits)}"
        )
    if found is None:
        own = family(config.reasoning_parser or "hermes")
        found = Detection(
            own if own.style.call else family("hermes"),
            (
                "no evidence: the chat template writes no calls; tool_call_parser names the model's format",
            ),
        )
    if reasoning is None:
        return found
    evidence = (*found.evidence, f"reasoning of {reasoning.name}: the operator's choice")
    return Detection(family(f"{found.family.name}+{reasoning.name}"), evidence, found.also)


def _stop_ids(tokenizer: PromptTokenizer, traits: TemplateTraits, found: Family) -> tuple[int, ...]:
    """The model's end-of-sequence ids, the family's stop tokens, and the token with which the
    template ends a turn."""
    last = tokenizer.terminator(traits.closing)
    if last in [tokenizer.id_of(marker) for marker in found.think or ()]:
        # a template that always opens the next turn, and closes its reasoning (Command R7B)
        last = None
    ids = [*tokenizer.eos_ids, *(tokenizer.id_of(token) for token in found.stops), last]
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _card(
    config: PreprocessorConfig,
    traits: TemplateTraits,
    found: Family,
    window: int,
    features: list[str],
) -> ModelCard:
    file = find_file(config.model, "config.json")
    levels = {
        *config.effort_budgets,
        *(level for levels in traits.efforts.values() for level in levels),
    }
    return ModelCard(
        name=config.model_name,
        aliases=[*config.other_names, *config.aliases],
        max_model_len=window,
        created=int(file.stat().st_mtime) if file is not None else 0,
        family=found.name,
        max_output_tokens=config.max_output_tokens or 0,
        reasoning=traits.reasoning is not None,
        efforts=[level for level in EFFORTS if level in levels],
        effort_budgets=config.effort_budgets,
        switchable=bool(traits.switches)
        or any("none" in levels for levels in traits.efforts.values()),
        tools=traits.tools,
        features=features,
        weight=config.alias_weight,
    )
