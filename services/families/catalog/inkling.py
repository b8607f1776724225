r"""Inkling.

    <|content_thinking|>Look first.<|end_message|><|message_model|>run_shell<|content_invoke_tool_json|>{"name": "run_shell", "args": {"cmd": "ls"}}<|end_message|>
    <|message_model|><|content_text|>Done.<|end_message|>

Special: the prompt ends in `<|message_model|>`; the header's name may be missing, because the JSON has it, too. Other content
(`<|content_invoke_tool_text|>`, `<|content_tool_error|>`) is text.
"""

from services.families.authoring import Channels, Family, Fields, HeaderPart, JsonCalls, MessageKind, Shape, Style, Tool

ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
INVOKE = "<|content_invoke_tool_json|>"
CALL = JsonCalls(closes=ENDS, arguments=("args", "arguments"), stop_closes=True)


def route(fields: Fields) -> MessageKind | Tool:
    """The kind of a message with this header."""
    if fields.get("content") == "call":
        return Tool(fields.get("name"), CALL)
    return MessageKind.REASONING if fields.get("content") == "thinking" else MessageKind.TEXT


FAMILY = Family(
    name="inkling",
    models="Inkling",
    tool_parsers=("inkling_tool_parser",),
    grammar=Channels(
        header=(
            HeaderPart(Shape(INVOKE), "content", "call", last=True),
            HeaderPart(Shape("<|content_thinking|>"), "content", "thinking", last=True),
            HeaderPart(Shape("<|content_{word}|>"), "content", "other", last=True),
            HeaderPart(Shape("{name}", then=("<|content_",)), "name"),
        ),
        route=route,
        starts=(Shape("<|message_model|>"),),
        ends=ENDS,
        interrupts=(Shape(INVOKE, then=("{",)), Shape("<|content_text|>")),
    ),
    style=Style(
        call='{name}<|content_invoke_tool_json|>{"name": "{name}", "args": {arguments}}<|end_message|>',
        text="<|content_text|>{text}<|end_message|>",
        joint="<|message_model|>",
    ),
    think=("<|content_thinking|>", "<|end_message|>"),
    markers=("<|message_model|>", "<|content_thinking|>", "<|content_text|>", INVOKE, *ENDS),
    evidence=("<|content_invoke_tool_json|>",),
)
