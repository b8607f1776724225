r"""Beam.

    <|channel|>analysis<|message|>Look first.<|end|><|start|>assistant to=run_shell<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="cmd">\nls\n</rfl:parameter><|call|>

Special: harmony's headers; arguments are tags with a line break on each side of a value.
"""

from dataclasses import replace
from functools import partial

from services.families.authoring import Parameters, Tags
from services.families.catalog.gpt_oss import ENDS, HARMONY, route
from services.families.catalog.gpt_oss import FAMILY as GPT_OSS

ARGUMENTS = Parameters(
    parameter_tags=("<rfl:parameter name={q}{key}{q}>",),
    parameter_closers=("</rfl:parameter>",),
    call_closers=ENDS,
    next_markers=("<|start|>",),
    call_tags=("<|message|>",),
    frame=True,
    json=("{",),
    stop_closes=True,
    rename=("functions.",),
)

FAMILY = GPT_OSS.variant(
    "beam",
    "Beam",
    grammar=replace(HARMONY, route=partial(route, arguments=ARGUMENTS)),
    style=replace(
        GPT_OSS.style,
        call=" to={name}<|channel|>analysis <|constrain|>xml<|message|>{arguments}<|call|>",
        arguments=Tags('<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>'),
    ),
    evidence=("<rfl:parameter",),
)
