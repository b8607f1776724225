r"""Command A and A+.

    Look first.<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "run_shell", "parameters": {"cmd": "ls"}}]<|END_ACTION|>

Special: text stands in `<|START_RESPONSE|>` or `<|START_TEXT|>`; the prompt opens thinking. Call
ids are positions in the turn, which the template counts itself.
"""

from services.families.authoring import CallMarker, Family, Form, JsonCalls, Markup, Shape, Style

THINK = ("<|START_THINKING|>", "<|END_THINKING|>")
FRAMES = (("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>"))

FAMILY = Family(
    name="cohere_command",
    models="Command A, Command A Reasoning, Command A+",
    tool_parsers=("cohere_command3", "cohere_command4"),
    grammar=Markup(
        think=(THINK,),
        calls=(
            CallMarker(
                Shape("<|START_ACTION|>", then=("[", "{")),
                JsonCalls(
                    form=Form.LIST, names=("tool_name", "name"), call_closers=("<|END_ACTION|>",)
                ),
            ),
        ),
        tails=("<|END_ACTION|>",),
        frames=FRAMES,
        framed=True,
        stops=("<|END_OF_TURN_TOKEN|>",),
    ),
    style=Style(
        call='<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{name}", "parameters": {arguments}}]<|END_ACTION|>',
        text="<|START_TEXT|>{text}<|END_TEXT|>",
        counter='"0"',
    ),
    prompt_opens_reasoning=True,
    markers=("<|START_ACTION|>", "<|END_ACTION|>", *THINK, *(m for pair in FRAMES for m in pair)),
    evidence=("<|START_ACTION|>", "tool_name"),
    model_types=("cohere2", "cohere2_vision", "cohere2_moe"),
)
