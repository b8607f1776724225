"""Reasoning for templates that read none: in the tags in which the family's models write it, in place in the content.

Many templates of models that think know nothing of it (QwQ, R1's distillates, a model tuned on another's template). The
reasoning that explains a call belongs before it all the same, each span before its own call. Whether the template lets
the tags stand is tried once, at load; some cut off what stands before the closing tag.
"""

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Part, Reasoning, Result, Text, Turn
from schemas.errors import Invalid
from services.parser import Family
from services.preprocessor.messages import adapt
from services.preprocessor.traits import Renderer, TemplateTraits

_THOUGHTS = ("zqweighed", "zqpondered")
_SAID = "zqremarked"
_CALLS = (Call("a00000001", "zqtool", '{"city": "zqfirst"}'), Call("a00000002", "zqtool", '{"city": "zqsecond"}'))
_TURNS: tuple[list[Part], ...] = (
    [Reasoning(_THOUGHTS[0]), _CALLS[0]],
    [Reasoning(_THOUGHTS[0]), Text(_SAID), _CALLS[0], Reasoning(_THOUGHTS[1]), _CALLS[1]],
)


def own_tags(template: Renderer, traits: TemplateTraits, family: Family) -> tuple[str, str] | None:
    """What goes before and behind a span of reasoning in the content; None where the template reads reasoning itself,
    the family's models write none, or the tags do not come out as they went in."""
    if traits.reasoning is not None or traits.ordered or family.think is None:
        return None
    tags = (f"{family.think[0]}\n", f"\n{family.think[1]}")
    told = replace(traits, own_tags=tags)
    return tags if all(_stand(template, told, family, turn, tags) for turn in _TURNS) else None


def _stand(template: Renderer, traits: TemplateTraits, family: Family, turn: list[Part], tags: tuple[str, str]) -> bool:
    results: list[Part] = [Result(part.call_id, [Text("zqfound")]) for part in turn if isinstance(part, Call)]
    turns = [Turn("user", [Text("zqasked")]), Turn("assistant", turn), Turn("tool", results)]
    try:
        adapted = adapt(Conversation("probe", turns), traits, template, write_call=family.write_call)
        text = template.render(adapted.messages)
    except Invalid:
        return False
    at = 0
    for part in turn:
        if isinstance(part, Call):
            mark = "zqfirst" if part is _CALLS[0] else "zqsecond"
        else:
            said = part.text if isinstance(part, Text | Reasoning) else None
            mark = f"{tags[0]}{said}{tags[1]}" if isinstance(part, Reasoning) else said or ""
        at = text.find(mark, at) + len(mark)
        if at < len(mark) or text.count(mark) != 1:
            return False
    return True
