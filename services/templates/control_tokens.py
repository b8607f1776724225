"""Finds a model's control tokens: the added tokens that text of users, files and tools must not
become. Pure.

As in transformers (`sanitize_control_tokens`) these are the special tokens and the other added
tokens that the chat template's text or strings contain, or else those that the tokenizer names
itself (`chat_control_tokens`). Beside those: tokens that the template puts together of pieces, and
the markers that the family's parser reads. White space never is one.
"""

from collections.abc import Iterator

from jinja2 import nodes

from schemas.conversation import Call, Message, Reasoning, Result, Text, ToolSpec
from services.families import Family
from services.templates.chat_template import ChatTemplate
from services.templates.jinja import environment
from services.templates.messages import render_messages
from services.templates.tools import tool_definition
from services.templates.traits import TemplateTraits
from services.tokenization.data_marks import DataMarks
from services.tokenization.tokenizer_files import LoadedTokenizer

_TAKES_APART = frozenset(
    ("partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit", "split")
)
"""Methods and filters that cut their first argument out of a text; `replace` only where it inserts
nothing. Single characters do not count: most texts hold them."""
_TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {"city": {"type": "string"}}})
_MESSAGES = [
    Message("user", [Text("Hi.")]),
    Message("assistant", [Reasoning("So."), Call("call_0", "look", '{"city": "Paris"}')]),
    Message("tool", [Result("call_0", [Text("Rain.")])]),
    Message("assistant", [Text("It rains.")]),
    Message("user", [Text("Well.")]),
]


def data_marks(
    tokenizer: LoadedTokenizer, template: ChatTemplate, traits: TemplateTraits, family: Family
) -> DataMarks:
    """The marks of data for this model."""
    tree = environment().parse(template.source)
    strings = list(_strings(tree))
    literals = [*(node.data for node in tree.find_all(nodes.TemplateData)), *strings]
    handled = set(_handled(tree))
    rendered = render_messages(_MESSAGES, traits, template, tools=[tool_definition(_TOOL)])
    thought = {tag.strip() for tag in family.think or ()}
    if handled.isdisjoint(thought):
        thought = set()
    return DataMarks(
        _control_tokens(tokenizer, "\0".join(literals), rendered, family),
        literals=literals,
        names=[*strings, *(node.attr for node in tree.find_all(nodes.Getattr))],
        handled=handled | thought,
        kept=thought,
    )


def _control_tokens(
    tokenizer: LoadedTokenizer, literal: str, rendered: str, family: Family
) -> Iterator[str]:
    named = tokenizer.chat_control_tokens
    markers = {text.strip() for text in (*family.markers, *family.stops, *(family.think or ()))}
    for token in tokenizer.added_tokens_decoder.values():
        content = token.content
        chosen = content in literal if named is None else content in named
        if content.strip() and (
            token.special or chosen or content in rendered or content in markers
        ):
            yield content


def _strings(tree: nodes.Node) -> Iterator[str]:
    return (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))


def _handled(tree: nodes.Template) -> Iterator[str]:
    """Strings at which the template splits texts."""
    calls = [
        (call.node.attr, call.args)
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Getattr)
    ]
    filters = [(applied.name, applied.args) for applied in tree.find_all(nodes.Filter)]
    for name, arguments in (*calls, *filters):
        texts = [
            argument.value
            for argument in arguments
            if isinstance(argument, nodes.Const) and isinstance(argument.value, str)
        ]
        replaced = name == "replace" and "".join(texts[1:]).strip()
        if name in _TAKES_APART and texts and len(texts[0]) > 1 and not replaced:
            yield texts[0]
