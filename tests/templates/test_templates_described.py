"""Turns as published chat templates write them: read by the description as transformers reads
them."""

import json
import random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Part, Reasoning, Text
from services.families.response_template import template_name
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.probe import probe
from services.templates.tools import tool_definition
from tests.kit.described_turns import (
    TOOLS,
    WRITTEN,
    Turn,
    by_transformers,
    fields,
    make_turn,
    parsed,
    splits,
)
from tests.kit.every import for_each
from tests.kit.published import needs_templates
from tests.kit.response_templates import of_trl
from tests.templates.real_templates import REAL_TEMPLATES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DESCRIBED = {  # the template of DeepSeek-R1 distilled leaves reasoning out of history
    "qwen3": "qwen3",
    "qwen3_5_think": "qwen3_5",
    "glm4moe": "glm4moe",
    "llama3_1": "llama3",
    "gptoss": "gptoss",
    "lfm2_2_5": "lfm2_2_5",
    "nemotron_3_nano": "nemotron_3",
    "gemma4": "gemma4",
}


@needs_templates
@for_each(
    [name for name in DESCRIBED if name in REAL_TEMPLATES and DESCRIBED[name] in of_trl()], parts=2
)
def test_rendered_turn_is_read_as_transformers_reads_it(
    name: str, demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    template, description = (
        ChatTemplate(demo_tokenizer, REAL_TEMPLATES[name].read_text()),
        of_trl()[DESCRIBED[name]],
    )
    traits, compared = replace(probe(template), call_ids="client"), 0
    definitions: Any = [tool_definition(tool) for tool in TOOLS]
    for seed in range(30):
        rng = random.Random(f"{name} {seed}")
        made = make_turn(rng, WRITTEN[DESCRIBED[name]])
        parts: list[Part] = [Reasoning(made.thought)] if made.thought else []
        parts += [Text(made.text)] if made.text else []
        parts += [
            Call(f"call_{n}", one, json.dumps(arguments))
            for n, (one, arguments) in enumerate(made.calls)
        ]
        talk = Conversation("m", [Message("user", [Text("Hello.")]), Message("assistant", parts)])
        messages = adapt(talk, traits, template).messages
        prompt = template.render(messages[:1], tools=definitions)
        whole = template.render(messages, tools=definitions, generation=False)
        if not whole.startswith(prompt):
            continue
        turn = Turn(prompt, whole.removeprefix(prompt), made.thought, made.text, made.calls)
        try:
            theirs = by_transformers(description, turn)
        except ValueError:  # Gemma 4's template writes null as Python does
            continue
        for pieces in splits(rng, turn.output):
            assert fields(parsed(template_name(json.dumps(description)), turn, pieces)) == theirs, (
                turn.output
            )
        compared += 1
    assert compared > 10
