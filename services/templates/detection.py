"""Detects a model's parser family: renders a call with its template and tries which parsers read it."""

from collections.abc import Iterable, Mapping
from typing import Any

from schemas.conversation import Call, Conversation, Text, ToolSpec, Turn
from schemas.errors import Invalid
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.families import Family, families, open_parser
from services.families.detection import Detection, detect
from services.templates.assistant import AssistantWriter
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.traits import TemplateTraits

_TOOL = ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
_CALL = Call("000000001", "get_weather", '{"city": "Paris"}')


def detect_family(
    template: ChatTemplate, traits: TemplateTraits, config: Mapping[str, Any], tokens: Iterable[str] = ()
) -> Detection | None:
    """The family and the evidence for it.

    The parser must read the template's own rendering of a call as exactly that call. Among several such families, and
    where the template renders no calls, the template's text, `config` (config.json) and `tokens` (the tokenizer's added
    tokens) decide. None where no parser reads the calls, or without any evidence.
    """
    if traits.arguments is None:
        return detect(config, template.source, tokens)
    for write in (_call_markup, _answer_with_call):
        try:
            markup = write(template, traits)
        except Invalid:
            continue
        if readers := [family for family in families().values() if _reads(family, markup)]:
            found = detect(config, template.source, tokens, among=readers) or Detection(readers[0], ())
            return Detection(found.family, (f"its parser reads {markup.strip()!r}", *found.evidence), found.also)
    return None


def _call_markup(template: ChatTemplate, traits: TemplateTraits) -> str:
    """A call as the template writes it, cut out of its message."""
    return AssistantWriter(traits, template, call_id=lambda call: call.call_id).markup([_CALL])


def _answer_with_call(template: ChatTemplate, traits: TemplateTraits) -> str:
    """All that the template writes behind the prompt for a call: some address a call in the header of its message
    (gpt-oss), or name its tool in its id (Kimi K2)."""
    conversation = Conversation("probe", [Turn("user", [Text("Hello.")]), Turn("assistant", [_CALL])])
    messages = adapt(conversation, traits, template).messages
    prompt, whole = template.render(messages[:1]), template.render(messages, generation=False)
    return whole.removeprefix(prompt) if whole.startswith(prompt) else ""


def _reads(family: Family, markup: str) -> bool:
    parser = open_parser(family.name, tools=[_TOOL], in_reasoning=False)
    events = [*parser.feed(markup), *parser.finish(FinishReason.STOP)]
    names = [event.name for event in events if isinstance(event, BlockStart)]
    arguments = "".join(event.text for event in events if isinstance(event, Delta))
    complete = all(event.complete for event in events if isinstance(event, BlockStop))
    return names == [_TOOL.name] and complete and "".join(arguments.split()) == '{"city":"Paris"}'
