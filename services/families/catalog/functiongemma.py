r"""FunctionGemma.

    <start_function_call>call:run_shell{cmd:<escape>ls<escape>}<end_function_call>

Special: Gemma 4's objects with other tokens; no reasoning.
"""

from services.families.authoring import Family, GemmaStyle, Style, object_calls

TOKEN = "<escape>"
END = "<end_function_call>"

FAMILY = Family(
    name="functiongemma",
    models="FunctionGemma",
    grammar=object_calls(
        "<start_function_call>", TOKEN, END, stops=("<end_of_turn>", "<start_function_response>")
    ),
    style=Style(
        call="<start_function_call>call:{name}{arguments}" + END, arguments=GemmaStyle(TOKEN)
    ),
    markers=("<start_function_call>", END, TOKEN),
    evidence=("<start_function_call>",),
)
