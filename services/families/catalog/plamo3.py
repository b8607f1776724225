r"""PLaMo 3.

<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>run_shell<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"cmd":
"ls"}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>
"""

from services.families.authoring import CallMarker, Family, Form, JsonCalls, Markup, Shape, Style


def tag(name: str) -> str:
    """A marker with this name."""
    return f"<|plamo:{name}:plamo|>"


THINK = (tag("begin_think"), tag("end_think"))
SECTION = tag("begin_tool_requests")
REQUEST = tag("begin_tool_request") + "{ws}" + tag("begin_tool_name")
ARGUMENTS = tag("end_tool_name") + "{ws}" + tag("begin_tool_arguments")
JSON = "<|plamo:constrain|>json<|plamo:msg|>"
ENDS = (tag("end_tool_arguments"), tag("end_tool_request"), tag("end_tool_requests"))
BODY = JsonCalls(form=Form.ARGUMENTS, call_closers=ENDS[:1])

FAMILY = Family(
    name="plamo3",
    models="PLaMo 3",
    grammar=Markup(
        think=(THINK,),
        calls=tuple(
            CallMarker(
                Shape(
                    opener + REQUEST + "{name}" + ARGUMENTS + constraint,
                    then=("{", '"', "null", ENDS[0]),
                ),
                BODY,
            )
            for opener in (SECTION + "{ws}", "")
            for constraint in (JSON, "<|plamo:msg|>", "")
        ),
        tails=ENDS,
        stops=("<|plamo:eos|>", "<|plamo:op|>"),
    ),
    style=Style(
        call=(SECTION + REQUEST + "{name}" + ARGUMENTS).replace("{ws}", "")
        + JSON
        + "{arguments}"
        + "".join(ENDS)
    ),
    prompt_opens_reasoning=True,
    markers=(
        SECTION,
        *ENDS,
        *THINK,
        tag("begin_tool_request"),
        tag("begin_tool_name"),
        tag("end_tool_name"),
    ),
    evidence=(SECTION,),
    model_types=("plamo3",),
)
