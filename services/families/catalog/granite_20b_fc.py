r"""Granite 20B function calling.

    <function_call> {"name": "run_shell", "arguments": {"cmd": "ls"}} <function_call> {…}

Special: nothing closes a call but its brace.
"""

from services.families.authoring import Family, Style, tagged_json

FAMILY = Family(
    name="granite_20b_fc",
    models="Granite 20B function calling",
    tool_parsers=("granite-20b-fc",),
    grammar=tagged_json("<function_call>", closer="", think=(), stops=("<|endoftext|>",)),
    style=Style(call='<function_call> {"name": "{name}", "arguments": {arguments}}'),
    evidence=("<function_call>",),
)
