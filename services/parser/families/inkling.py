r"""Inkling.

    <|content_thinking|>Look first.<|end_message|><|message_model|>run_shell<|content_invoke_tool_json|>{"name": "run_shell", "args": {"cmd": "ls"}}<|end_message|>
    <|message_model|><|content_text|>Done.<|end_message|>

Special: the prompt ends in `<|message_model|>`; the header's name may be missing, the JSON has it too. Other content
(`<|content_invoke_tool_text|>`, `<|content_tool_error|>`) is text.
"""

from services.parser.channels import Channels, Fields, Piece, Said, Tool
from services.parser.family import Family
from services.parser.readers.calls import JsonCalls
from services.parser.shapes import Shape
from services.parser.writing import Style

ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
INVOKE = "<|content_invoke_tool_json|>"
CALL = JsonCalls(closes=ENDS, arguments=("args", "arguments"), stop_closes=True)


def route(fields: Fields) -> Said | Tool:
    """What a message with this header is."""
    if fields.get("content") == "call":
        return Tool(fields.get("name"), CALL)
    return Said.REASONING if fields.get("content") == "thinking" else Said.TEXT


FAMILY = Family(
    name="inkling",
    models="Inkling",
    tool_parsers=("inkling", "inkling_tool_parser"),
    reasoning_parsers=("inkling",),
    grammar=Channels(
        header=(
            Piece(Shape(INVOKE), "content", "call", last=True),
            Piece(Shape("<|content_thinking|>"), "content", "thinking", last=True),
            Piece(Shape("<|content_{word}|>"), "content", "other", last=True),
            Piece(Shape("{name}", then=("<|content_",)), "name"),
        ),
        route=route,
        starts=(Shape("<|message_model|>"),),
        ends=ENDS,
    ),
    style=Style(
        call='{name}<|content_invoke_tool_json|>{"name": "{name}", "args": {arguments}}<|end_message|>',
        reasoning="<|content_thinking|>{text}<|end_message|>",
        text="<|content_text|>{text}<|end_message|>",
        joint="<|message_model|>",
    ),
    think=("<|content_thinking|>", "<|end_message|>"),
    markers=("<|message_model|>", "<|content_thinking|>", "<|content_text|>", INVOKE, *ENDS),
    evidence=("<|content_invoke_tool_json|>",),
)
