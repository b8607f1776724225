"""A model family: its names, its prompt's habits, its grammar, and how it writes what it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.parser.turn import Program
from services.parser.writing import Style


@dataclass(frozen=True, kw_only=True)
class Family:
    """What is known of a family; one file in `families/` each."""

    name: str
    models: str
    """Which models write so, for people."""
    grammar: Program
    style: Style
    tool_parsers: tuple[str, ...] = ()
    """Names of tool parsers of other servers that this family answers to."""
    reasoning_parsers: tuple[str, ...] = ()
    """Names of reasoning parsers that belong to this family and no other."""
    think: tuple[str, str] | None = None
    """The markers around reasoning, as they stand in a prompt."""
    prompt_opens_reasoning: bool = False
    """The generation prompt ends inside reasoning, where thinking is on."""
    markers: tuple[str, ...] = ()
    """Special tokens that the grammar needs to see as text."""
    stops: tuple[str, ...] = ()
    """Special tokens that end a turn."""
    evidence: tuple[str, ...] = ()
    """What a chat template or vocabulary of this family holds; for `detect`."""
    model_types: tuple[str, ...] = field(default=())
    """`model_type`s of config.json whose models write so; for `detect`."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """All names but its own, without repeats."""
        return tuple(dict.fromkeys(n for n in (*self.tool_parsers, *self.reasoning_parsers) if n != self.name))

    def opens_reasoning(self, prompt_tail: str) -> bool:
        """Whether a rendered prompt that ends so leaves reasoning open."""
        if self.think is None:
            return False
        opener, closer = (marker.removesuffix(">") for marker in self.think)  # a tokenizer may add to the name
        at = prompt_tail.rfind(opener)
        tail = prompt_tail[at + len(opener) :]
        return at >= 0 and closer not in tail and not any(stop in tail for stop in self.stops)

    def call_prefix(self, name: str | None) -> str:
        """The text that opens a forced call of `name`, or of any tool: the end of the prompt, and `open_parser`'s
        `prefix`."""
        return self.style.call_prefix(name)

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the family writes it."""
        return self.style.write_call(name, arguments)

    def write_reasoning(self, text: str) -> str:
        """Reasoning as the family writes it, markers and all."""
        return self.style.write_reasoning(text)
