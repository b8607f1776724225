"""Renders a chat template by minijinja where that proves equal to Jinja, and by Jinja otherwise."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import jinja2
import jinja2.meta

from services.templates.fast_template import FastTemplate
from services.templates.jinja import FILTERS, FUNCTIONS, Check, CheckedContext, environment


class TemplateRenderer:
    """Renders one template. Thread-safe.

    Its texts are Jinja's by definition. minijinja renders once it made the same texts in
    `proving`, until a sample of `find_difference` shows another one.
    """

    def __init__(self, source: str) -> None:
        """Raises ValueError where the text is not a template."""
        self.reason = "it was not tried"
        """Why minijinja is used, or not."""
        self._source = source
        self._checks = threading.local()
        self._fast: FastTemplate | None = None
        self._candidate: FastTemplate | None = None
        """minijinja's template while it is proved."""
        self._keeps_sample = False
        self._sample: Mapping[str, Any] | None = None
        jinja = environment()
        try:
            self._template = jinja.from_string(source)
            self._tree = jinja.parse(source)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(self._tree))
            """Names that the template does not define itself."""
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from error

    @property
    def engine(self) -> str:
        """The engine in use: `minijinja` or `jinja`."""
        return "jinja" if self._fast is None else "minijinja"

    @contextmanager
    def checked(self, check: Check) -> Iterator[None]:
        """A context in which this thread's renderings by Jinja call `check` every few steps of the
        template's loops. An exception of `check` ends the rendering."""
        self._checks.check = check
        try:
            yield
        finally:
            self._checks.check = None

    @contextmanager
    def proving(self) -> Iterator[None]:
        """A context in which both engines render. minijinja renders from then on if all its texts
        and refusals were Jinja's."""
        try:
            self._candidate = FastTemplate(self._source, self._tree, FUNCTIONS, FILTERS)
        except ValueError as error:
            self.reason = f"minijinja cannot render it: {error}"
        try:
            yield
        finally:
            if self._candidate is not None:
                self.reason = "its texts were equal in all trials"
            self._fast, self._candidate = self._candidate, None

    def render(self, variables: dict[str, Any], *, by_jinja: bool = False) -> str:
        """The text for these variables. Raises what the template raises in Jinja. `by_jinja`:
        without minijinja."""
        if self._keeps_sample:
            self._keeps_sample = False
            self._sample = variables
        if self._candidate is not None:
            return self._render_by_both(variables)
        if self._fast is not None and not by_jinja:
            text = self._fast.render(variables)
            if text is not None:
                return text
        return self._render_by_jinja(variables)

    def keep_sample(self) -> None:
        """Keeps the next variables for `find_difference`."""
        self._keeps_sample = True

    def find_difference(self) -> str | None:
        """Renders the kept variables by both engines. On a difference, which is returned, minijinja
        is not used any more. None: there is none, or nothing was kept."""
        sample, self._sample = self._sample, None
        fast = self._fast
        if sample is None or fast is None:
            return None
        text = fast.render(sample)
        if text is None or text == self._render_by_jinja(dict(sample)):
            return None
        self._fast = None
        self.reason = "a text by minijinja was not Jinja's"
        return self.reason

    def _render_by_both(self, variables: dict[str, Any]) -> str:
        """Jinja's text. minijinja is a candidate no more if it has another one, or one where Jinja
        has none."""
        fast = None if self._candidate is None else self._candidate.render(variables)
        text: str | None = None
        try:
            text = self._render_by_jinja(variables)
            return text
        finally:
            if fast is not None and fast != text:
                self._candidate = None
                self.reason = "a text by minijinja was not Jinja's in the trials"

    def _render_by_jinja(self, variables: dict[str, Any]) -> str:
        context = cast(CheckedContext, self._template.new_context(variables))
        context.check = getattr(self._checks, "check", None)
        try:
            return self._template.environment.concat(self._template.root_render_func(context))
        finally:
            # macros, which refer to the context: only a garbage collection would free both
            context.vars.clear()
