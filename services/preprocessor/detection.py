"""Which parser family reads what a model writes, told from how its template writes a call."""

from schemas.conversation import Call, ToolSpec
from schemas.errors import Invalid
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.parser import Family, families, open_parser
from services.preprocessor.assistant import AssistantForms
from services.preprocessor.template import ChatTemplate
from services.preprocessor.traits import TemplateTraits

_TOOL = ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
_CALL = Call("000000001", "get_weather", '{"city": "Paris"}')


def detect_family(template: ChatTemplate, traits: TemplateTraits, model_type: str | None = None) -> Family | None:
    """The family whose parser reads the template's own rendering of a call as just that call.

    Several read the same calls: one that names `model_type` (config.json's) goes before one whose evidence the template
    holds, and that before the most used. None where no parser reads it, or the template renders no calls.
    """
    if traits.arguments is None:
        return None
    try:
        markup = AssistantForms(traits, template, call_id=lambda call: call.call_id).markup([_CALL])
    except Invalid:
        return None

    def fit(family: Family) -> tuple[bool, int]:
        return model_type in family.model_types, sum(word in template.source for word in family.evidence)

    return max((family for family in families().values() if _reads(family, markup)), key=fit, default=None)


def _reads(family: Family, markup: str) -> bool:
    parser = open_parser(family.name, tools=[_TOOL], in_reasoning=False)
    events = [*parser.feed(markup), *parser.finish(FinishReason.STOP)]
    names = [event.name for event in events if isinstance(event, BlockStart)]
    arguments = "".join(event.text for event in events if isinstance(event, Delta))
    complete = all(event.complete for event in events if isinstance(event, BlockStop))
    return names == [_TOOL.name] and complete and "".join(arguments.split()) == '{"city":"Paris"}'
