r"""Granite 20B function calling.

    <function_call> {"name": "run_shell", "arguments": {"cmd": "ls"}} <function_call> {…}

Special: nothing closes a call but its brace.
"""

from services.parser.families.grammars import tagged_json
from services.parser.family import Family
from services.parser.writing import Style

STOPS = ("<|endoftext|>",)

FAMILY = Family(
    name="granite_20b_fc",
    models="Granite 20B function calling",
    tool_parsers=("granite_20b_fc", "granite-20b-fc"),
    grammar=tagged_json("<function_call>", closer="", think=(), stops=STOPS),
    style=Style(call='<function_call> {"name": "{name}", "arguments": {arguments}}'),
    stops=STOPS,
    evidence=("<function_call>",),
)
