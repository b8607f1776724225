"""Loads a model's tokenizer, template and configuration for the preprocessor."""

from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from schemas.control import THINKING_BUDGET, VISION, ModelCard
from schemas.conversation import EFFORTS, Sampling
from schemas.requests import ThoughtSpelling
from services.families import Family
from services.preprocessor.model.family_choice import choose_family
from services.preprocessor.model.thought_spelling import thought_spelling
from services.runtime.config.base import MIB
from services.runtime.config.stages import PreprocessorConfig
from services.templates.chat_template import ChatTemplate
from services.templates.control_tokens import data_marks
from services.templates.probe import image_frame, probe, reasoning_tags
from services.templates.traits import TemplateTraits
from services.templates.trial_texts import render_trials
from services.tokenization.data_marks import DataMarks
from services.tokenization.encoder import Encoder
from services.tokenization.image_processor import ImageProcessor, NoVision
from services.tokenization.model_files import (
    ModelFacts,
    find_file,
    read_facts,
)
from services.tokenization.prompt_tokenizer import PromptTokenizer
from services.tokenization.tokenizer_files import load_tokenizer

OBJECT_FACTOR = 8
"""Memory of tools in bytes per byte of their JSON."""


@dataclass(frozen=True)
class ModelSetup:
    """Everything that is needed to make prompts for one model. Immutable."""

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
    """Bound of a cache of tools, in bytes of their JSON."""
    card: ModelCard
    images: ImageProcessor | None
    """None: the model gets a note for each image."""
    no_vision_reason: str
    """Why that is so; "" for a model that sees images."""
    reasoning_markers: ThoughtSpelling | None
    """The markers around its reasoning; None: the family reads no reasoning."""

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
        traits = _probe(template, config)

        detection = choose_family(config, template, traits, loaded.get_added_vocab())
        family = detection.family

        marks: DataMarks | None = None
        if not config.control_tokens_in_data:
            marks = data_marks(loaded, template, traits, family)
        tokenizer = PromptTokenizer(loaded, eos_ids=facts.eos_ids)
        encoder = Encoder.load(
            tokenizer.backend,
            choice=config.tokenizer,
            cache_bytes=config.prompt_cache_mb * MIB,
            marks=marks,
        )
        window = _window(config, facts)

        vision = _vision(config, template)
        traits = replace(
            traits,
            reasoning_tags=reasoning_tags(template, traits, family),
            image=vision.frame,
        )
        reasoning_markers = thought_spelling(
            tokenizer, family, traits.inline.separators.before_text
        )
        features = _features(reasoning_markers, vision)
        return cls(
            template=template,
            traits=traits,
            tokenizer=tokenizer,
            encoder=encoder,
            family=family,
            evidence=detection.statement,
            max_model_len=window,
            window_cap=config.max_model_len,
            stop_ids=_stop_ids(tokenizer, traits, family),
            sampling=facts.sampling,
            template_kwargs=config.template_kwargs,
            strip_preamble=config.strip_anthropic_preamble,
            cache_bytes=config.prompt_cache_mb * MIB // OBJECT_FACTOR,
            card=_card(config, traits, family, window, features),
            images=vision.processor,
            no_vision_reason=vision.no_vision_reason,
            reasoning_markers=reasoning_markers,
        )

    def effective_window(self, worker_window: int | None) -> int:
        """The context window of prompt and output, in tokens. The workers' window (None: not known
        yet) takes precedence over the one in the files."""
        if worker_window is None:
            return self.max_model_len
        if self.window_cap is None:
            return worker_window
        return min(worker_window, self.window_cap)


class _Vision(NamedTuple):
    """How the model sees images."""

    processor: ImageProcessor | None = None
    frame: tuple[str, str] | None = None
    """`TemplateTraits.image`."""
    no_vision_reason: str = ""
    """Why it sees none."""


def _probe(template: ChatTemplate, config: PreprocessorConfig) -> TemplateTraits:
    """The template's traits; what is rendered for them is the trial of minijinja."""
    if config.template_engine == "jinja":
        template.renderer.reason = "the operator's choice"
        return probe(template)
    with template.renderer.proving():
        traits = probe(template)
        render_trials(template, traits)
    return traits


def _window(config: PreprocessorConfig, facts: ModelFacts) -> int:
    """The context window in tokens. Raises ValueError where neither operator nor files state it."""
    window = config.max_model_len or facts.window
    if window is None:
        raise ValueError(f"{config.model} states no context window; set max_model_len")
    return window


def _features(reasoning_markers: ThoughtSpelling | None, vision: _Vision) -> list[str]:
    """The features of the model's card."""
    features: list[str] = []
    if reasoning_markers:
        features.append(THINKING_BUDGET)
    if vision.processor:
        features.append(VISION)
    return features


def _vision(config: PreprocessorConfig, template: ChatTemplate) -> _Vision:
    try:
        processor = ImageProcessor.load(config.model, trust_remote_code=config.trust_remote_code)
    except NoVision as error:
        return _Vision(no_vision_reason=str(error))
    frame = image_frame(template, processor.placeholder)
    if frame is None:
        return _Vision(no_vision_reason="its chat template renders no images")
    return _Vision(processor, frame)


def _stop_ids(
    tokenizer: PromptTokenizer, traits: TemplateTraits, family: Family
) -> tuple[int, ...]:
    """The model's end-of-sequence ids, the family's stop tokens, and the token with which the
    template ends a turn."""
    ids = [*tokenizer.eos_ids, *(tokenizer.id_of(token) for token in family.stops)]
    last = tokenizer.terminator(traits.closing)
    reasoning_markers = [tokenizer.id_of(marker) for marker in family.think or ()]
    # Not of a template that always opens the next turn, and closes its reasoning (Command R7B).
    if last not in reasoning_markers:
        ids.append(last)
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _card(
    config: PreprocessorConfig,
    traits: TemplateTraits,
    family: Family,
    window: int,
    features: list[str],
) -> ModelCard:
    """The model's entry in the list of models."""
    file = find_file(config.model, "config.json")
    template_efforts = set(chain.from_iterable(traits.inputs.efforts.values()))
    efforts = template_efforts.union(config.effort_budgets)
    return ModelCard(
        name=config.model_name,
        aliases=[*config.other_names, *config.aliases],
        max_model_len=window,
        created=0 if file is None else int(file.stat().st_mtime),
        family=family.name,
        max_output_tokens=config.max_output_tokens or 0,
        reasoning=traits.reasoning is not None,
        efforts=[level for level in EFFORTS if level in efforts],
        effort_budgets=config.effort_budgets,
        switchable=bool(traits.inputs.switches) or "none" in template_efforts,
        tools=traits.inputs.tools,
        features=features,
        weight=config.alias_weight,
        passes_adapters=True,
    )
