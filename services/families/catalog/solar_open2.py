r"""Solar Open 2.

    Look first.<|think:end|><|tool_call:start|>run_shell\n<|tool_arg:start|>cmd<|tool_arg:value|>ls<|tool_arg:end|>\n<|tool_call:end|>

Special: the prompt ends in `<|think:start|>`, or closes the reasoning at low effort. Values are
exact, types are the schema's.
"""

from services.families.authoring import Family, Markup, Parameters, Style, Tags

THINK = ("<|think:start|>", "<|think:end|>")
CALL, CALL_END = "<|tool_call:start|>", "<|tool_call:end|>"
KEY, VALUE, VALUE_END = "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"
BODY = Parameters(
    parameter_tags=(KEY + "{key}" + VALUE,),
    parameter_closers=(VALUE_END,),
    call_closers=(CALL_END,),
    next_markers=(CALL,),
    call_tags=(CALL + "{name}",),
)

FAMILY = Family(
    name="solar_open2",
    models="Solar Open 2",
    grammar=Markup(
        think=(THINK,),
        calls=(BODY.call(CALL + "{ws}{name}"),),
        tails=(CALL_END,),
        stops=("<|im:end|>",),
    ),
    style=Style(
        call=CALL + "{name}\n{arguments}" + CALL_END,
        arguments=Tags(KEY + "{key}" + VALUE + "{value}" + VALUE_END + "\n"),
    ),
    prompt_opens_reasoning=True,
    markers=(CALL, CALL_END, KEY, VALUE, VALUE_END, *THINK),
    evidence=(CALL, KEY),
    model_types=("solar_open2",),
)
