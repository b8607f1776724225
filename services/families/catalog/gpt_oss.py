r"""gpt-oss (harmony).

    <|channel|>analysis<|message|>Look first.<|end|><|start|>assistant<|channel|>commentary to=functions.run_shell <|constrain|>json<|message|>{"cmd": "ls"}<|call|>
    <|channel|>final<|message|>Done.<|return|>

Special: the prompt ends in `<|start|>assistant`. A recipient, wherever in the header it stands,
makes a message a call; commentary without one is text for the user, and so is a message with an
unknown channel. `<|call|>` and `<|return|>` are stop tokens and usually missing.
"""

from re import compile

from services.families.authoring import (
    END,
    CallReader,
    Channels,
    Family,
    Form,
    JsonCalls,
    Kind,
    MessageKind,
    Shape,
    Style,
    ToolChannel,
)

START = "<|start|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
CHANNELS = ("analysis", "commentary", "final")
ARGUMENTS = JsonCalls(
    form=Form.ARGUMENTS, call_closers=ENDS, stop_closes=True, rename=("functions.",)
)
FOLLOWS = ("<|message|>", "<|channel|>", "<|constrain|>", "to=")
NOBODY = ("user", "assistant", "all")
_TO = compile(r"to\s*=\s*([^\s<>|{]+)")
_OTHERS = compile(r"\s*(?:user|system|developer|tool|functions)\b")
_CHANNEL = compile(r"(?i)analysis|commentary|final")
_JOINED = compile(r"to\s*=\s*[^\s<>|{]+(?:(?:analysis|commentary|final)\b|\|)")
"""Matches a recipient that has run into the name of a channel, or into a piece of a marker."""


def headers(marker: str) -> tuple[Shape, ...]:
    """The beginnings of headers with this marker, in the taught forms and in others."""
    return (
        Shape(marker + "{name}", then=FOLLOWS, marker=marker + "{name}"),
        Shape(marker, then=(*FOLLOWS, END)),
        Shape(marker + "{header}", then=("to=", "<|message|>"), marker=marker + "{header}"),
    )


def route(header: str, arguments: CallReader = ARGUMENTS) -> Kind:
    """The kind of a message with this header. One that lacks the marker of its channel may be no
    call, because the recipient is not certain."""
    _, started, header = header.rpartition(START)
    if started and _OTHERS.match(header):
        return MessageKind.NOTHING
    if "<|channel|>" not in header and _JOINED.search(header):
        return MessageKind.TEXT
    recipient = next((name for name in _TO.findall(header) if name not in NOBODY), None)
    if recipient is not None:
        return ToolChannel(recipient, arguments)
    channels = _CHANNEL.findall(header)
    return (
        MessageKind.REASONING
        if channels and channels[-1].lower() == "analysis"
        else MessageKind.TEXT
    )


HARMONY = Channels(
    route=route,
    starts=headers(START),
    again=headers("<|channel|>"),
    bodies=(Shape("<|message|>"),),
    ends=ENDS,
    parts=(START, "<|channel|>", "<|constrain|>", "assistant", *CHANNELS, "json", "code", "xml"),
)

FAMILY = Family(
    name="gpt_oss",
    models="gpt-oss 20B, 120B",
    tool_parsers=("openai", "gpt-oss", "harmony", "harmony_text"),
    reasoning_parsers=("openai_gptoss", "gpt-oss"),
    grammar=HARMONY,
    style=Style(
        call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
        text="<|channel|>final<|message|>{text}<|end|>",
        joint="<|start|>assistant",
    ),
    think=("<|channel|>analysis<|message|>", "<|end|>"),
    markers=(START, "<|channel|>", "<|constrain|>", "<|message|>", *ENDS),
    evidence=("<|channel|>commentary", "<|message|>"),
    model_types=("gpt_oss",),
)
