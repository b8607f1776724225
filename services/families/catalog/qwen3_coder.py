r"""Qwen3-Coder, Qwen3.5 and later.

    Look first.\n</think>\n\n<tool_call>\n<function=run_shell>\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>

Special: a line break on each side of a value is the template's; further functions may share a
wrapper, the wrapper may be missing, and a value may lack its closer. Thinking models' prompts end
in `<think>\n`; Qwen3 hybrids open it themselves.
"""

from services.families.authoring import FRAMED_THINK, Family, Style, Tags, function_tags

FAMILY = Family(
    name="qwen3_coder",
    models="Qwen3-Coder, Qwen3-Next, Qwen3.5, 3.6, 3.8, Kolibri 1, BerryLM, IQuest Coder and Coder V2",
    tool_parsers=(
        "qwen3_xml",
        "nanbeige",
        "kolibri1",
        "berrylm",
        "iquest_coder",
        "iquest_coder_v2",
    ),
    reasoning_parsers=("qwen3", "qwen3_5", "qwen3-thinking"),
    grammar=function_tags(frame=True),
    style=Style(
        call="<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        arguments=Tags("<parameter={key}>\n{value}\n</parameter>\n"),
        reasoning=FRAMED_THINK,
    ),
    prompt_opens_reasoning=True,
    markers=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    evidence=("<tool_call>", "<function=", "<parameter="),
)
