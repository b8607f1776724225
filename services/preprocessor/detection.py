"""Which parser family reads what a model writes: told from how its template writes a call, by reading that."""

from collections.abc import Iterable, Mapping
from typing import Any

from schemas.conversation import Call, ToolSpec
from schemas.errors import Invalid
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.parser import Family, families, open_parser
from services.parser.detect import Detection, detect
from services.preprocessor.assistant import AssistantForms
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
    try:
        markup = AssistantForms(traits, template, call_id=lambda call: call.call_id).markup([_CALL])
    except Invalid:
        return None
    readers = [family for family in families().values() if _reads(family, markup)]
    if not readers:
        return None
    found = detect(config, template.source, tokens, among=readers) or Detection(readers[0], ())
    return Detection(found.family, (f"its parser reads {markup.strip()!r}", *found.evidence), found.also)


def _reads(family: Family, markup: str) -> bool:
    parser = open_parser(family.name, tools=[_TOOL], in_reasoning=False)
    events = [*parser.feed(markup), *parser.finish(FinishReason.STOP)]
    names = [event.name for event in events if isinstance(event, BlockStart)]
    arguments = "".join(event.text for event in events if isinstance(event, Delta))
    complete = all(event.complete for event in events if isinstance(event, BlockStop))
    return names == [_TOOL.name] and complete and "".join(arguments.split()) == '{"city":"Paris"}'
