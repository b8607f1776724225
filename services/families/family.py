"""A model family: its names, its grammar, its written form, and how its models are detected.

The families of models are in `catalog`; the one of raw completions, `VERBATIM`, is here.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from services.families.grammar.channels import Channels
from services.families.grammar.markup import Markup
from services.families.grammar.prose import read_verbatim
from services.families.grammar.turn_parser import TurnGrammar
from services.families.writing import Style


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family; each has a file in `catalog/`."""

    name: str
    models: str
    """The models that use this format, as text for people."""
    grammar: TurnGrammar
    style: Style
    tool_parsers: tuple[str, ...] = ()
    """Aliases: names of tool parsers in other servers."""
    reasoning_parsers: tuple[str, ...] = ()
    """Aliases: names of reasoning parsers that belong to this family only."""
    think: tuple[str, str] | None = None
    """The markers around reasoning in a prompt. None: the grammar's first pair."""
    prompt_opens_reasoning: bool = False
    """The generation prompt ends inside reasoning when thinking is on."""
    markers: tuple[str, ...] = ()
    """Special tokens that the grammar needs to see as text."""
    stops: tuple[str, ...] = ()
    """Special tokens that end a turn. Empty: the grammar's."""
    evidence: tuple[str, ...] = ()
    """Strings that all appear in a chat template of this family; for `detect`."""
    model_types: tuple[str, ...] = ()
    """Values of `model_type` in config.json; for `detect`."""

    @property
    def title(self) -> str:
        """The name for people."""
        return title(self.name)

    def __post_init__(self) -> None:
        if isinstance(self.grammar, Markup | Channels) and not self.grammar.call_tokens:
            tokens = self._call_tokens(self.grammar.block_tokens)
            object.__setattr__(self, "grammar", replace(self.grammar, call_tokens=tokens))
        if isinstance(self.grammar, Markup):
            if self.think is None and self.grammar.think:
                object.__setattr__(self, "think", self.grammar.think[0])
            object.__setattr__(self, "stops", self.stops or self.grammar.stops)
        if self.think is not None and not self.style.reasoning:
            object.__setattr__(
                self, "style", replace(self.style, reasoning="{text}".join(self.think))
            )

    def _call_tokens(self, others: Collection[str]) -> tuple[str, ...]:
        """The special tokens that a call is written with, without `others`. One that is only the
        name of tags comes with their brackets, too."""
        if not self.style.call:
            return ()
        call = self.style.write_call("name", {"text": "x", "number": 1})
        tokens = [marker for marker in self.markers if marker in call and marker not in others]
        names = [token for token in tokens if token[0] not in "<[]"]
        return (*(bracket + name for name in names for bracket in ("</", "<")), *tokens)

    def variant(self, name: str, models: str, **changes: Any) -> "Family":
        """Returns a family that differs from this one by `changes`. Aliases and model types are not
        inherited; `think` and `stops` follow a changed grammar."""
        cleared: dict[str, Any] = {"tool_parsers": (), "reasoning_parsers": (), "model_types": ()}
        if isinstance(changes.get("grammar"), Markup):
            cleared |= {"think": None, "stops": ()}
        return replace(self, name=name, models=models, **{**cleared, **changes})

    def opens_reasoning(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends in `prompt_tail` leaves reasoning open."""
        if self.think is None:
            return False
        # A tokenizer may add to the name.
        opener, closer = (marker.removesuffix(">") for marker in self.think)
        at = prompt_tail.rfind(opener)
        tail = prompt_tail[at + len(opener) :]
        return at >= 0 and closer not in tail and not any(stop in tail for stop in self.stops)


VERBATIM: Final = Family(
    name="verbatim", models="any, for raw completions", grammar=read_verbatim, style=Style()
)
"""All output is one text block, and markers have no meaning. Special tokens are left out, as in
vLLM and OpenAI's API; white space is kept."""


def title(name: str) -> str:
    """A family's name for people: that of a description (`response_template`) is the description
    itself."""
    return "response_template" if name.startswith("{") else name
