"""A model's chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
import jinja2.meta

from schemas.errors import Invalid
from services.preprocessor.jinja_template import as_given, environment
from services.preprocessor.tokenizer_files import LoadedTokenizer, load_tokenizer, special_tokens

Message: TypeAlias = dict[str, Any]
"""A message in the form that chat templates read: role, content, tool_calls and what else the template wants."""
Tool: TypeAlias = dict[str, Any]
"""A tool in the form that chat templates read: OpenAI's `{"type": "function", "function": {…}}`."""

_RESERVED = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "self", "kwargs"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens"),
    )
)
"""What a template is given by its server, and parameters of transformers' `apply_chat_template`, which is how other
servers render: a client's variable of such a name means something else than it says."""


class ChatTemplate:
    """Messages to prompt text. Immutable; may be used from several threads at once."""

    def __init__(self, tokenizer: LoadedTokenizer, source: str) -> None:
        """`source` is the Jinja text; special tokens that it names come from `tokenizer`.

        Raises ValueError where the text is not a template.
        """
        self.source = source
        self._special = special_tokens(tokenizer)
        jinja = environment()
        try:
            self._template = jinja.from_string(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(jinja.parse(source)))
            """Names that the template reads from outside."""
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from error

    @classmethod
    def load(cls, model: str, *, override: str | None = None, trust_remote_code: bool = False) -> "ChatTemplate":
        """The template of a model directory or hub id, or the one in the file `override`.

        Of several templates the one for tool use is taken, for turns with and without tools: a session in which tools
        come and go would part from its own prefix otherwise. Raises ValueError where there is none, OSError where the
        model or the file cannot be read.
        """
        return cls.of(load_tokenizer(model, trust_remote_code=trust_remote_code), override=override)

    @classmethod
    def of(cls, tokenizer: LoadedTokenizer, *, override: str | None = None) -> "ChatTemplate":
        """As `load`, for a tokenizer that is loaded already."""
        if override is not None:
            return cls(tokenizer, Path(override).read_text(encoding="utf-8"))
        source = tokenizer.chat_template
        if isinstance(source, dict):
            source = source.get("tool_use", source.get("default"))
        if not source:
            raise ValueError("the model has no chat template; name a file with one (chat_template)")
        return cls(tokenizer, source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
        generation: bool = True,
    ) -> str:
        """The prompt text; with `generation`, up to where the model's own turn begins. Messages, tools and variables
        are JSON data.

        Raises Invalid, with the template's own words, where the template refuses these messages or variables.
        """
        variables = variables or {}
        if taken := _RESERVED & variables.keys():
            raise Invalid(f"chat_template_kwargs may not set {', '.join(sorted(taken))}", param="chat_template_kwargs")
        if not messages:
            raise Invalid("at least one message is required", param="messages")
        given = {
            **self._special,
            **variables,
            "messages": as_given(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": generation,
        }
        try:
            return self._template.render(given)
        except jinja2.TemplateError as error:
            raise Invalid(f"the model's chat template refuses this conversation: {error}", param="messages") from error
        except (TypeError, ValueError, AttributeError, KeyError, IndexError, ArithmeticError) as error:
            raise Invalid(
                f"the model's chat template cannot render this conversation: {error}", param="messages"
            ) from error
