"""Loads a model's chat template and renders it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import jinja2

from schemas.errors import Invalid
from services.templates.jinja import template_message
from services.templates.json_values import NestedTooDeeply
from services.templates.renderer import TemplateRenderer
from services.tokenization.tokenizer_files import LoadedTokenizer

TemplateMessage: TypeAlias = dict[str, Any]
"""A message as chat templates read it: role, content, tool_calls and other fields of the
template."""
TemplateTool: TypeAlias = dict[str, Any]
"""A tool as chat templates read it: OpenAI's `{"type": "function", "function": {…}}`."""

FEW_MESSAGES = 4
"""The most messages that Jinja renders. minijinja copies every text before it begins: one long
question with twenty tools takes it 0.12 to 0.3 ms instead of 0.08."""
_RESERVED = frozenset(
    """
    messages conversation tools documents chat_template add_generation_prompt self kwargs
    continue_final_message tokenize padding truncation max_length return_tensors return_dict
    return_assistant_tokens_mask tokenizer_kwargs sanitize_control_tokens
    """.split()  # noqa: SIM905
)
"""Variables that the server sets, and parameters of transformers' `apply_chat_template`, with which
other servers render. A client's variable with one of these names would not do what the client
expects."""

_ERRORS_IN_TEMPLATES = (
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    IndexError,
    ArithmeticError,
)


class ChatTemplate:
    """Renders messages to prompt text. Thread-safe."""

    def __init__(self, tokenizer: LoadedTokenizer, source: str, name: str = "of the model") -> None:
        """`source` is the Jinja text. Special tokens that it names come from `tokenizer`. `name`:
        follows the words "the chat template" in errors.

        Raises ValueError where the text is not a template.
        """
        self.source = source
        self.name = name
        self.renderer = TemplateRenderer(source)
        self.variables = self.renderer.variables
        """Names that the template does not define itself."""
        self._special = tokenizer.special_tokens

    @classmethod
    def of(
        cls, tokenizer: LoadedTokenizer, *, override: str | None = None, model: str | None = None
    ) -> "ChatTemplate":
        """The template of a loaded tokenizer, or the one in the file `override`. `model`: the
        model's name, for errors.

        Of several templates the one for tool use serves turns with and without tools: with two, a
        session that drops its tools would lose its prefix. Raises ValueError where there is none,
        OSError where the file cannot be read.
        """
        if override is not None:
            return cls(tokenizer, Path(override).read_text(encoding="utf-8"), Path(override).name)
        source = tokenizer.chat_template
        if isinstance(source, dict):
            source = source.get("tool_use", source.get("default"))
        if not source:
            raise ValueError("the model has no chat template; name a file with one (chat_template)")
        return cls(tokenizer, source, f"of {model or 'the model'}")

    def render(
        self,
        messages: Sequence[TemplateMessage],
        *,
        tools: Sequence[TemplateTool] = (),
        variables: Mapping[str, Any] | None = None,
        generation: bool = True,
    ) -> str:
        """The prompt text; with `generation`, it ends with the opening of the model's turn.
        Messages, tools and variables are JSON data.

        Agents drop old messages, and several templates demand one of the user, or that the first is
        the user's. If a template refuses messages that do not begin so, an empty one is put after
        the leading instructions. Raises Invalid, with the template's own message, where the
        template refuses these messages or variables, and RecursionError where they are nested too
        deeply to be written as JSON.
        """
        variables = variables or {}
        reserved = _RESERVED & variables.keys()
        if reserved:
            raise Invalid(
                f"chat_template_kwargs may not set {', '.join(sorted(reserved))}",
                param="chat_template_kwargs",
            )
        if not messages:
            raise Invalid("at least one message is required", param="messages")
        try:
            return self.renderer.render(
                {
                    **self._special,
                    **variables,
                    "messages": list(map(template_message, messages)),
                    "tools": list(tools) or None,
                    "documents": None,
                    "add_generation_prompt": generation,
                },
                by_jinja=len(messages) <= FEW_MESSAGES,
            )
        except NestedTooDeeply:
            raise RecursionError("nested too deeply") from None
        except RecursionError as error:
            raise Invalid(
                f"the chat template {self.name} exceeded the recursion limit with this "
                "conversation",
                param="messages",
            ) from error
        except jinja2.TemplateError as error:
            asked = _with_question(messages)
            if asked is not None:
                with suppress(Invalid):
                    return self.render(
                        asked, tools=tools, variables=variables, generation=generation
                    )
            raise Invalid(
                f"the model's chat template refuses this conversation: {error}", param="messages"
            ) from error
        except _ERRORS_IN_TEMPLATES as error:
            raise Invalid(
                f"the model's chat template cannot render this conversation: {error}",
                param="messages",
            ) from error


def _with_question(messages: Sequence[TemplateMessage]) -> list[TemplateMessage] | None:
    """The messages with an empty one of the user after the leading instructions; None if there is
    one already."""
    at = 0
    while at < len(messages) and messages[at]["role"] in ("system", "developer"):
        at += 1
    if at < len(messages) and messages[at]["role"] == "user":
        return None
    return [*messages[:at], {"role": "user", "content": ""}, *messages[at:]]
