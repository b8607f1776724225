"""Which parser family reads what a model writes: told from how its template writes a call, by reading that."""

from collections.abc import Iterable, Mapping
from typing import Any

from schemas.conversation import Call, Conversation, Text, ToolSpec, Turn
from schemas.errors import Invalid
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.parser import Family, families, open_parser
from services.parser.detect import Detection, detect
from services.preprocessor.assistant import AssistantForms
from services.preprocessor.messages import adapt
from services.preprocessor.template import ChatTemplate
from services.preprocessor.traits import TemplateTraits

_TOOL = ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
_CALL = Call("000000001", "get_weather", '{"city": "Paris"}')


def detect_family(
    template: ChatTemplate, traits: TemplateTraits, config: Mapping[str, Any], tokens: Iterable[str] = ()
) -> Detection | None:
    """The family, and what tells it.

    A family whose parser reads the template's own rendering of a call as just that call goes before all else; among
    several the template's text, `config` (config.json) and `tokens` (the tokenizer's added ones) decide. Where the
    template renders no calls they decide alone. None where no parser reads its calls, or nothing tells.
    """
    if traits.arguments is None:
        return detect(config, template.source, tokens)
    for write in (_call_alone, _behind_prompt):
        try:
            markup = write(template, traits)
        except Invalid:
            continue
        if readers := [family for family in families().values() if _reads(family, markup)]:
            found = detect(config, template.source, tokens, among=readers) or Detection(readers[0], ())
            return Detection(found.family, (f"its parser reads {markup.strip()!r}", *found.evidence), found.also)
    return None


def _call_alone(template: ChatTemplate, traits: TemplateTraits) -> str:
    """A call as the template writes it, cut out of its message."""
    return AssistantForms(traits, template, call_id=lambda call: call.call_id).markup([_CALL])


def _behind_prompt(template: ChatTemplate, traits: TemplateTraits) -> str:
    """All that the template writes of a call behind the prompt, which is what the model would write: for templates that
    address a call in its header (gpt-oss), or name its tool in its id (Kimi K2)."""
    conversation = Conversation("probe", [Turn("user", [Text("Hello.")]), Turn("assistant", [_CALL])])
    messages = adapt(conversation, traits, template).messages
    asked, whole = template.render(messages[:1]), template.render(messages, generation=False)
    return whole.removeprefix(asked) if whole.startswith(asked) else ""


def _reads(family: Family, markup: str) -> bool:
    parser = open_parser(family.name, tools=[_TOOL], in_reasoning=False)
    events = [*parser.feed(markup), *parser.finish(FinishReason.STOP)]
    names = [event.name for event in events if isinstance(event, BlockStart)]
    arguments = "".join(event.text for event in events if isinstance(event, Delta))
    complete = all(event.complete for event in events if isinstance(event, BlockStop))
    return names == [_TOOL.name] and complete and "".join(arguments.split()) == '{"city":"Paris"}'
