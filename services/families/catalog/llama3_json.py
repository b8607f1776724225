r"""Llama 3.1 to 3.3, and Llama 4 with JSON calls.

    {"name": "run_shell", "parameters": {"cmd": "ls"}}; {"name": …}   or   <|python_tag|>{"name": …}

Special: the JSON is its own marker, so an object is a call only if it has a name, arguments and
nothing else, or the name of a tool of the request. Other JSON is text.
"""

from services.families.authoring import CallMarker, Family, JsonCalls, Markup, Shape, Style

PYTHON = "<|python_tag|>"

FAMILY = Family(
    name="llama3_json",
    models="Llama 3.1, 3.2, 3.3",
    tool_parsers=("llama3", "llama4_json", "default"),
    grammar=Markup(
        calls=(
            CallMarker(Shape(PYTHON, then=("{",)), JsonCalls()),
            CallMarker(
                Shape("{", then=('"name"', '"type"', '"function"', '"parameters"', '"arguments"')),
                JsonCalls(strict=True),
            ),
        ),
        joints=(";", PYTHON),
        stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>"),
    ),
    style=Style(call='{"name": "{name}", "parameters": {arguments}}'),
    markers=(PYTHON,),
    evidence=('{"name": ', '"parameters": '),
    model_types=("llama", "mllama"),
)
