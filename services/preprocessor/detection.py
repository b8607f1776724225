"""Which parser family reads what a model writes, told from how its template writes a call."""

from schemas.conversation import Call, ToolSpec
from schemas.events import BlockStart, BlockStop, Delta, FinishReason
from services.parser import Family, families, open_parser
from services.preprocessor.assistant import AssistantForms
from services.preprocessor.traits import Renderer, TemplateTraits

_TOOL = ToolSpec("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
_CALL = Call("call_1", "get_weather", '{"city": "Paris"}')


def detect_family(template: Renderer, traits: TemplateTraits, model_type: str | None = None) -> Family | None:
    """The family whose parser reads the template's own rendering of a call as just that call.

    Of several that do, the one that names `model_type` (config.json's), else the most used. None where no parser reads
    it, or the template renders no calls.
    """
    if traits.arguments is None:
        return None
    markup = AssistantForms(traits, template, call_id=lambda call: call.call_id).markup([_CALL])
    able = [family for family in families().values() if _reads(family, markup)]
    return next((family for family in able if model_type in family.model_types), next(iter(able), None))


def _reads(family: Family, markup: str) -> bool:
    parser = open_parser(family.name, tools=[_TOOL], in_reasoning=False)
    events = [*parser.feed(markup), *parser.finish(FinishReason.STOP)]
    names = [event.name for event in events if isinstance(event, BlockStart)]
    arguments = "".join(event.text for event in events if isinstance(event, Delta))
    complete = all(event.complete for event in events if isinstance(event, BlockStop))
    return names == [_TOOL.name] and complete and "".join(arguments.split()) == '{"city":"Paris"}'
