r"""TeleChat 4.

    Look first.</think><tool_call>run_shell<param_key>cmd</param_key><param_value>ls</param_value></tool_call>

Special: GLM-4.7's grammar with other names for its tags, or Hermes' JSON in the same wrapper.
"""

from services.families.authoring import THINK, Family, Style, Tags, key_value_tags

FAMILY = Family(
    name="telechat4",
    models="TeleChat 4",
    tool_parsers=("xing4_0", "xingchen4"),
    grammar=key_value_tags(
        key="param_key", value="param_value", stops=("<_end>", "<|im_end|>", "<|endoftext|>")
    ),
    style=Style(
        call="<tool_call>{name}{arguments}</tool_call>",
        arguments=Tags("<param_key>{key}</param_key><param_value>{value}</param_value>"),
    ),
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", *THINK),
    evidence=("<param_key>",),
)
