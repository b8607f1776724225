r"""GigaChat 3.

    Done.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}   or   <|function_call|>{…}

Special: nothing closes a call but its brace; `<|message_sep|>` ends a text.
"""

from services.families.authoring import Family, Style, tagged_json

STOPS = ("<|message_sep|>", "</s>")

FAMILY = Family(
    name="gigachat3",
    models="GigaChat 3",
    grammar=tagged_json(
        "<|function_call|>", "function call<|role_sep|>", closer="", think=(), stops=STOPS
    ),
    style=Style(call='<|function_call|>{"name": "{name}", "arguments": {arguments}}'),
    markers=("<|function_call|>", "<|role_sep|>", "<|message_sep|>"),
    evidence=("<|function_call|>",),
)
