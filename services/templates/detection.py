"""Detects a model's parser family: renders a call with its template and tries which parsers read
it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from schemas.conversation import Call, Conversation, Message, Text, ToolSpec
from schemas.errors import Invalid
from schemas.events import FinishReason, blocks_of
from services.families import Family, families, find_family, open_parser
from services.families.description.fields import InvalidResponseTemplate
from services.families.markup_evidence import Detection, detect
from services.families.response_template import template_name
from services.templates.assistant import AssistantWriter
from services.templates.chat_template import ChatTemplate, TemplateMessage
from services.templates.messages import adapt
from services.templates.traits import TemplateTraits, with_calls
from services.tokenization.segments import common_prefix

_TOOL = ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
_CALLS = tuple(
    Call(call_id, "get_weather", '{"city": "Paris"}')
    for call_id in ("000000001", "functions.get_weather:0")
)
"""A call with an id in Mistral's form, and one with an id that names the tool: some templates write
only the id (Kimi K2.5)."""
_NEAR = 4
_DESCRIBED = (
    "no family reads the model's calls, and its tokenizer_config.json has a response_template"
)


def detect_family(
    template: ChatTemplate,
    traits: TemplateTraits,
    config: Mapping[str, Any],
    tokens: Iterable[str] = (),
    description: str | None = None,
) -> Detection | None:
    """The family and the evidence for it.

    `description`: the model's own `response_template`, as JSON text. It is taken unless a family
    reads a call of the template, with no more text left beside it. Raises InvalidResponseTemplate
    if it is taken and cannot be followed.

    The parser must read the template's own rendering of a call as exactly that call. Among several
    such families, and where the template renders no calls, the template's text, `config`
    (config.json) and `tokens` (the tokenizer's added tokens) decide. None where no parser reads the
    calls, or without any evidence.
    """
    if traits.calls.arguments is None:
        if description is not None:
            return Detection(find_family(template_name(description)), (_DESCRIBED,))
        return detect(config, template.source, tokens)
    for markup, alone in _renderings(template, traits):
        texts = _texts_beside_call(markup, alone=alone)
        if not texts:
            continue
        if description is not None and _leaves_less(description, markup, texts.values()):
            continue
        readers = list(texts)
        detection = detect(config, f"{template.source}\n{markup}", tokens, among=readers)
        if detection is None:
            detection = Detection(readers[0], (), tuple(readers[1:]))
        evidence = (f"its parser reads {markup.strip()!r}", *detection.evidence)
        return Detection(detection.family, evidence, detection.also)
    return None if description is None else _described(template, traits, description)


def _texts_beside_call(markup: str, *, alone: bool) -> dict[Family, str]:
    """The families that read a call, each with the text that it leaves beside the call."""
    texts = {
        family: _text_beside_call(family, markup, alone=alone) for family in families().values()
    }
    return {family: text for family, text in texts.items() if text is not None}


def _leaves_less(description: str, markup: str, others: Iterable[str]) -> bool:
    """Whether a description reads the call with less text beside it than any family leaves."""
    try:
        text = _text_beside_call(find_family(template_name(description)), markup, alone=False)
    except InvalidResponseTemplate:
        return False
    return text is not None and len(text) < min(map(len, others))


def _described(template: ChatTemplate, traits: TemplateTraits, description: str) -> Detection:
    """The family of a description, and whether it reads the calls of the template."""
    described = find_family(template_name(description))
    renderings = _renderings(template, traits)
    reads = any(
        _text_beside_call(described, markup, alone=alone) is not None
        for markup, alone in renderings
    )
    calls = "it reads the calls" if reads else "it does not read the calls"
    return Detection(described, (_DESCRIBED, f"{calls} that the chat template writes"))


def unread_calls(template: ChatTemplate, traits: TemplateTraits) -> str:
    """Describes a template with calls that no parser reads: a call as the template writes it, and
    the families with markers in it, or else all."""
    markups = (markup.strip() for markup, _ in _renderings(template, traits))
    markup = next(filter(None, markups), "")
    near = _nearest_families(template.source + markup)
    hint = f"nearest are {', '.join(near)}" if near else f"there are {', '.join(families())}"
    return (
        f"it writes one as {markup[-200:]!r}; choose a parser with tool_call_parser (none: no "
        f"calls), {hint}"
    )


def _nearest_families(text: str) -> list[str]:
    """The names of the families with the most markers in a text, best first."""
    counts = Counter[str]()
    for candidate in families().values():
        markers = sum(marker in text for marker in candidate.markers)
        if markers:
            counts[candidate.name] = markers
    return [name for name, _ in counts.most_common(_NEAR)]


def _renderings(template: ChatTemplate, traits: TemplateTraits) -> Iterator[tuple[str, bool]]:
    """Calls as the template writes them, and whether nothing else is in the text."""
    for write, alone in (
        (_call_markup, True),
        (_answer_with_call, True),
        (_message_with_call, False),
    ):
        for call in _CALLS:
            try:
                yield write(template, traits, call), alone
            except Invalid:
                continue


def _call_markup(template: ChatTemplate, traits: TemplateTraits, call: Call) -> str:
    return AssistantWriter(traits, template, call_ids={}).markup([call])


def _answer_with_call(template: ChatTemplate, traits: TemplateTraits, call: Call) -> str:
    """Everything that the template writes after the prompt for a call: some address a call in the
    header of its message (gpt-oss)."""
    messages = _messages(template, traits, call)
    prompt = template.render(messages[:1])
    rendered = template.render(messages, generation=False)
    return rendered.removeprefix(prompt) if rendered.startswith(prompt) else ""


def _message_with_call(template: ChatTemplate, traits: TemplateTraits, call: Call) -> str:
    """A message with a call, with its header: in history some turns begin with other text than the
    prompt ended with."""
    messages = _messages(template, traits, call)
    before = template.render(messages[:1], generation=False)
    rendered = template.render(messages, generation=False)
    return rendered[len(common_prefix(before, rendered)) :]


def _messages(template: ChatTemplate, traits: TemplateTraits, call: Call) -> list[TemplateMessage]:
    conversation = Conversation(
        "probe", [Message("user", [Text("Hello.")]), Message("assistant", [call])]
    )
    return adapt(conversation, with_calls(traits, ids="client"), template).messages


def _text_beside_call(family: Family, markup: str, *, alone: bool) -> str | None:
    """The text beside the call as the family reads it; None if it does not read the call: with
    `alone` as the whole text, else beside text without pieces of the call."""
    parser = open_parser(family.name, tools=[_TOOL], in_reasoning=False)
    blocks = list(blocks_of([*parser.feed(markup), *parser.finish(FinishReason.STOP)]))
    calls = [(start.name, text) for start, text, _ in blocks if start.kind == "tool_use"]
    if len(calls) != 1 or (alone and len(blocks) > 1):
        return None
    ((name, arguments),) = calls
    if name != _TOOL.name or "".join(arguments.split()) != '{"city":"Paris"}':
        return None
    if not all(stop is not None and stop.complete for _, _, stop in blocks):
        return None
    beside = "".join(text for start, text, _ in blocks if start.kind != "tool_use")
    if any(piece in beside for piece in (_TOOL.name, "Paris", *_foreign_markers(family))):
        return None
    return beside.strip()


def _foreign_markers(family: Family) -> set[str]:
    """The markers of all other families that this one does not have."""
    markers: set[str] = set()
    for other in families().values():
        markers.update(other.markers)
    return markers.difference(family.markers)
