r"""Inkling.

    <|content_thinking|>Look first.<|end_message|><|message_model|>run_shell<|content_invoke_tool_json|>{"name": "run_shell", "args": {"cmd": "ls"}}<|end_message|>
    <|message_model|><|content_text|>Done.<|end_message|>

Special: the prompt ends in `<|message_model|>`; the header's name may be missing, because the JSON
has it, too. Other content (`<|content_invoke_tool_text|>`, `<|content_tool_error|>`) is text.
"""

from services.families.authoring import (
    Channels,
    Family,
    JsonCalls,
    Kind,
    MessageKind,
    Shape,
    Style,
    ToolChannel,
)

START = "<|message_model|>"
ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
INVOKE = "<|content_invoke_tool_json|>"
CALL = JsonCalls(call_closers=ENDS, arguments=("args", "arguments"), stop_closes=True)


def route(header: str) -> Kind:
    """The kind of a message with this header."""
    if header.endswith(INVOKE):
        name = header.removesuffix(INVOKE).rpartition(START)[2].strip()
        return ToolChannel(name or None, CALL)
    return MessageKind.REASONING if header.endswith("<|content_thinking|>") else MessageKind.TEXT


FAMILY = Family(
    name="inkling",
    models="Inkling",
    tool_parsers=("inkling_tool_parser",),
    grammar=Channels(
        route=route,
        starts=(Shape(START),),
        bodies=(Shape(INVOKE), Shape("<|content_{word}|>")),
        ends=ENDS,
        parts=(START,),
        interrupts=(Shape(INVOKE, then=("{",)), Shape("<|content_text|>")),
    ),
    style=Style(
        call='{name}<|content_invoke_tool_json|>{"name": "{name}", "args": {arguments}}<|end_message|>',
        text="<|content_text|>{text}<|end_message|>",
        joint=START,
    ),
    think=("<|content_thinking|>", "<|end_message|>"),
    markers=(START, "<|content_thinking|>", "<|content_text|>", INVOKE, *ENDS),
    evidence=("<|content_invoke_tool_json|>",),
)
