r"""dots.

    <think>\nLook first.\n</think>\n\n<dots_function_call>\n<invoke name="run_shell">\n<parameter name="cmd">ls</parameter>\n</invoke>\n</dots_function_call>

Special: MiniMax M2's grammar in a wrapper of its own, or Hermes' JSON in the same wrapper.
"""

from services.families.authoring import FRAMED_THINK, THINK, Family, Style, Tags, invoke_tags

STOPS = ("<|endofresponse|>", "<|im_end|>", "<|endoftext|>")

FAMILY = Family(
    name="dots",
    models="dots.llm",
    grammar=invoke_tags(
        ("<dots_function_call>",), tails=("</dots_function_call>",), stops=STOPS, json=True
    ),
    style=Style(
        call='<dots_function_call>\n<invoke name="{name}">\n{arguments}</invoke>\n</dots_function_call>',
        arguments=Tags('<parameter name="{key}">{value}</parameter>\n'),
        reasoning=FRAMED_THINK,
    ),
    markers=("<dots_function_call>", "</dots_function_call>", *THINK),
    evidence=("<dots_function_call>", "<invoke name="),
    model_types=("dots1",),
)
