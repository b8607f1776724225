"""Loads a model's chat template and renders it."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, cast

import jinja2
import jinja2.meta

from schemas.errors import Invalid
from services.templates.jinja import (
    Check,
    CheckedContext,
    NestedTooDeeply,
    environment,
    template_message,
)
from services.tokenization.tokenizer_files import LoadedTokenizer, special_tokens

TemplateMessage: TypeAlias = dict[str, Any]
"""A message as chat templates read it: role, content, tool_calls and other fields of the
template."""
TemplateTool: TypeAlias = dict[str, Any]
"""A tool as chat templates read it: OpenAI's `{"type": "function", "function": {…}}`."""

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
    """Renders messages to prompt text. Immutable and thread-safe."""

    def __init__(self, tokenizer: LoadedTokenizer, source: str, name: str = "of the model") -> None:
        """`source` is the Jinja text. Special tokens that it names come from `tokenizer`. `name`:
        follows the words "the chat template" in errors.

        Raises ValueError where the text is not a template.
        """
        self.source = source
        self.name = name
        self._checks = threading.local()
        self._special = special_tokens(tokenizer)
        jinja = environment()
        try:
            self._template = jinja.from_string(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(jinja.parse(source)))
            """Names that the template does not define itself."""
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from error

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

    @contextmanager
    def checked(self, check: Check) -> Iterator[None]:
        """A context in which this thread's renderings call `check` every few steps of the
        template's loops. An exception of `check` ends the rendering."""
        self._checks.check = check
        try:
            yield
        finally:
            self._checks.check = None

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
            return self._run(
                {
                    **self._special,
                    **variables,
                    "messages": list(map(template_message, messages)),
                    "tools": list(tools) or None,
                    "documents": None,
                    "add_generation_prompt": generation,
                }
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

    def _run(self, variables: dict[str, Any]) -> str:
        context = cast(CheckedContext, self._template.new_context(variables))
        context.check = getattr(self._checks, "check", None)
        try:
            return self._template.environment.concat(self._template.root_render_func(context))
        finally:
            # macros, which refer to the context: only a garbage collection would free both
            context.vars.clear()


def _with_question(messages: Sequence[TemplateMessage]) -> list[TemplateMessage] | None:
    """The messages with an empty one of the user after the leading instructions; None if there is
    one already."""
    at = 0
    while at < len(messages) and messages[at]["role"] in ("system", "developer"):
        at += 1
    if at < len(messages) and messages[at]["role"] == "user":
        return None
    return [*messages[:at], {"role": "user", "content": ""}, *messages[at:]]
