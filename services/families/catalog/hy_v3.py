r"""Hunyuan 3 (Hy3).

    Look first.</think><tool_calls>\n<tool_call>run_shell<tool_sep>\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>\n</tool_calls>

Special: GLM's tags in a section, the name ends at `<tool_sep>`. A tokenizer may add to every
marker's name (`<tool_calls:opensource>`).
"""

from services.families.authoring import Family, Style, Tags, key_value_tags

SUFFIXED_THINK = ("<think{suffix}>", "</think{suffix}>")
STOPS = ("<｜hy_eos｜>", "<｜hy_end▁of▁sentence｜>", "<|endoftext|>", "<|im_end|>")

FAMILY = Family(
    name="hy_v3",
    models="Hunyuan 3",
    tool_parsers=("hunyuan",),
    grammar=key_value_tags(
        name="{name}{ws}<tool_sep{suffix}>",
        section="tool_calls",
        suffix="{suffix}",
        think=(SUFFIXED_THINK,),
        stops=STOPS,
    ),
    style=Style(
        call="<tool_calls>\n<tool_call>{name}<tool_sep>\n{arguments}</tool_call>\n</tool_calls>",
        arguments=Tags("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"),
    ),
    think=("<think>", "</think>"),
    prompt_opens_reasoning=True,
    markers=(
        "<tool_calls>",
        "</tool_calls>",
        "<tool_call>",
        "</tool_call>",
        "<tool_sep>",
        "<think>",
        "</think>",
    ),
    evidence=("<tool_calls>", "<tool_call>", "<tool_sep>", "<arg_key>", "</arg_key>\n"),
    model_types=("hy_v3",),
)
