r"""Kimi K3 (XTML).

    Look first.<|close|>think<|sep|><|open|>response<|sep|>Done.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="run_shell" index="1"<|sep|><|open|>argument key="cmd" type="string"<|sep|>ls<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>

Special: types are stated; attributes escape `"` and `&`; a call may hold one JSON block instead of
arguments; a tokenizer may put blanks around the names. The prompt ends in the opener of the
reasoning or of the response.
"""

from services.families.authoring import Family, Markup, Parameters, Style, Tags


def opening(name: str) -> str:
    """An opening tag."""
    return f"<|open|>{{ws}}{name}{{ws}}<|sep|>"


def closing(name: str) -> str:
    """A closing tag."""
    return f"<|close|>{{ws}}{name}{{ws}}<|sep|>"


def unescape(attribute: str) -> str:
    """Undoes the escapes of an attribute."""
    return attribute.replace("&quot;", '"').replace("&amp;", "&")


CALL = ("call tool={q}{name}{q} index={q}{tag}{q}", "call tool={q}{name}{q}")
TOOLS = opening("tools")
NEXT_CALL = "<|open|>{ws}call tool="
ARGUMENTS = Parameters(
    parameter_tags=(
        opening("argument key={q}{key}{q} type={q}{word}{q}"),
        opening("argument key={q}{key}{q}"),
    ),
    parameter_closers=(closing("argument"),),
    call_closers=(closing("call"),),
    next_markers=(closing("tools"), TOOLS, NEXT_CALL, closing("message")),
    call_tags=tuple(map(opening, CALL)),
    json=(opening("json type={q}object{q}"), opening("json")),
    json_closers=(closing("json"),),
    pieces=("<|sep|>",),
    unescape=unescape,
)

FAMILY = Family(
    name="kimi_k3",
    models="Kimi K3",
    tool_parsers=("kimi-k3",),
    reasoning_parsers=("kimi-k3",),
    grammar=Markup(
        think=((opening("think"), closing("think")),),
        calls=(
            *(ARGUMENTS.call(TOOLS + "{ws}" + opening(call), marker=TOOLS) for call in CALL),
            *(ARGUMENTS.call(opening(call), marker=NEXT_CALL) for call in CALL),
        ),
        frames=((opening("response"), closing("response")),),
        framed=True,
        tails=(closing("tools"), closing("call")),
        joints=(TOOLS,),
        stops=(closing("message"), "<|end_of_msg|>"),
    ),
    style=Style(
        call='<|open|>tools<|sep|><|open|>call tool="{name}" index="1"<|sep|>{arguments}<|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
        arguments=Tags(
            '<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>'
        ),
        text="<|open|>response<|sep|>{text}<|close|>response<|sep|>",
        counter='index="1"',
    ),
    think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    prompt_opens_reasoning=True,
    markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    stops=("<|end_of_msg|>",),
    evidence=("<|open|>", "<|sep|>"),
    model_types=("kimi_k3",),
)
