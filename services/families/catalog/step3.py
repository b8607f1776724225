r"""Step 3.

    Look first.\n</think>\n<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="run_shell">\n<steptml:parameter name="cmd">ls</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>

Special: values are exact, types the schema's.
"""

from services.families.authoring import FRAMED_THINK, Family, Style, Tags, invoke_tags

CALL = "<｜tool_call_begin｜>function<｜tool_sep｜>"

FAMILY = Family(
    name="step3",
    models="Step 3",
    grammar=invoke_tags(
        ("<｜tool_calls_begin｜>{ws}" + CALL, CALL),
        "steptml:",
        tails=("<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
        stops=("<｜end▁of▁sentence｜>", "<|EOT|>"),
    ),
    style=Style(
        call="<｜tool_calls_begin｜>\n"
        + CALL
        + '<steptml:invoke name="{name}">\n{arguments}</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>',
        arguments=Tags('<steptml:parameter name="{key}">{value}</steptml:parameter>\n'),
        reasoning=FRAMED_THINK,
    ),
    prompt_opens_reasoning=True,
    markers=(
        "<｜tool_calls_begin｜>",
        "<｜tool_call_begin｜>",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    ),
    evidence=("<steptml:invoke",),
    model_types=("step3", "step3_vl"),
)
