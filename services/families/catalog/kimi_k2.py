r"""Kimi K2, K2 Thinking, K2.5 to 2.7.

    Look first.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.run_shell:0<|tool_call_argument_begin|>{"cmd": "ls"}<|tool_call_end|><|tool_calls_section_end|>

Special: the header is the call's id. Its number counts over the whole conversation, and the
template renders it verbatim, so it must survive the client. The section may be missing, or named in
the singular; text before its first call is dropped.
"""

from re import compile

from services.families.authoring import (
    CHATML_STOPS,
    THINK,
    CallMarker,
    Family,
    Form,
    JsonCalls,
    Markup,
    Shape,
    Style,
)

_ID = compile(r"""(?:functions\.)?(?P<name>[^\s<>"'`(){}\[\],;=|]+?)(?::\d+)?:?\Z""")
CALL = "<|tool_call_begin|>{id}<|tool_call_argument_begin|>"
BEGINS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")


def identify(header: str) -> tuple[str, str]:
    """The tool's name and the call id in `functions.NAME:NUMBER`; a name may have dots."""
    header = header.strip()
    match = _ID.match(header)
    return (match["name"] if match else ""), header


ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, call_closers=("<|tool_call_end|>",))

FAMILY = Family(
    name="kimi_k2",
    models="Kimi K2, K2 Thinking, K2.5, 2.6, 2.7",
    reasoning_parsers=("kimi_k25",),
    grammar=Markup(
        think=(THINK,),
        calls=(
            *(CallMarker(Shape(begin + "{ws}" + CALL), ARGUMENTS, identify) for begin in BEGINS),
            *(
                CallMarker(
                    Shape(begin + "{junk}" + CALL, marker=begin + "{junk}<|tool_call_begin|>"),
                    ARGUMENTS,
                    identify,
                )
                for begin in BEGINS
            ),
            CallMarker(Shape(CALL), ARGUMENTS, identify),
        ),
        tails=("<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>"),
        stops=CHATML_STOPS,
    ),
    style=Style(
        call="<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        counter=":0<",
    ),
    prompt_opens_reasoning=True,
    markers=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        *THINK,
    ),
    evidence=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    model_types=("kimi_k2", "kimi_k25"),
)
