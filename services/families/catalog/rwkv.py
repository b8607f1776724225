r"""RWKV-7.

    <think>Look first.</think>**Tool Call:**\n```json\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n```

Special: the words before the fence are the marker; JSON in a fence alone is text. Hermes' tags are
read, too.
"""

from dataclasses import replace

from services.families.authoring import (
    THINK,
    CallMarker,
    Family,
    JsonCalls,
    Shape,
    Style,
    tagged_json,
)

FENCE = "```"
MARKED = CallMarker(
    Shape("**Tool Call:**{ws}```json", then=("{",)), JsonCalls(call_closers=(FENCE,))
)
TAGS = tagged_json("<tool_call>", closer="</tool_call>", stops=())

FAMILY = Family(
    name="rwkv",
    models="RWKV-7",
    grammar=replace(TAGS, calls=(MARKED, *TAGS.calls)),
    style=Style(
        call='**Tool Call:**\n```json\n{"name": "{name}", "arguments": {arguments}}\n```',
        reasoning="{text}".join(THINK),
    ),
    evidence=("**Tool Call:**",),
    model_types=("rwkv7", "rwkv"),
)
