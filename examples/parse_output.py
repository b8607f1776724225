"""The parser core alone: model output as ordered blocks, piece by piece: python
examples/parse_output.py"""

from schemas.conversation import ToolSpec
from schemas.events import FinishReason
from services.families import open_parser

OUTPUT = """I should look first.
</think>

Let me see.

<tool_call>
<function=run_shell>
<parameter=command>
ls -l
</parameter>
</function>
</tool_call>"""

shell = ToolSpec(
    "run_shell",
    "Runs a command.",
    {"type": "object", "properties": {"command": {"type": "string"}}},
)
parser = open_parser("qwen3_coder", tools=[shell], in_reasoning=True)
for start in range(0, len(OUTPUT), 7):  # the blocks are the same for any chunking
    for event in parser.feed(OUTPUT[start : start + 7]):
        print(event)
for event in parser.finish(FinishReason.STOP):
    print(event)
