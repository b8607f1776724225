"""Plays a session through the ledger step by step, and checks each step by the words in its
text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from schemas.events import FinishReason
from services.ledger.turn_ledger import TurnLedger
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from services.runtime.storage.seal import Sealer
from sessions.clients import Client
from sessions.models import empty_ledger
from sessions.turn_writer import WORD, Choices, Model, Output, go_on, start

SEALER = Sealer(b"bench")


@dataclass(frozen=True)
class Before:
    """A prompt, and the tokens that were decoded after it."""

    prompt: Prompt
    output: Output

    @property
    def ids(self) -> list[int]:
        """The ids that an engine has in its cache after the turn."""
        return [*self.prompt.ids, *self.output.ids]

    @property
    def head(self) -> str:
        """The prompt's text up to where the turn's reasoning is opened or left out."""
        context = self.prompt.encoded.context
        return self.prompt.text[: context.head_chars] if context else self.prompt.text

    def kept_in(self, text: str, count: int | None = None) -> bool:
        """Returns whether a prompt has the turn after the same text, with every word once and in
        order. `count`: only the turn's first words."""
        head, words = self.head, self.output.words[:count]
        return text.startswith(head) and WORD.findall(text[len(head) :])[: len(words)] == words

    def whole_in(
        self,
        text: str,
        ends: Sequence[str],
        starts: Sequence[str] = (),
        *,
        count: int | None = None,
    ) -> bool:
        """Returns whether the turn (`count`: up to this word) is also one message there, or several
        that begin with one of `starts`. Templates without a form for it get several messages, with
        a token of `ends` between them."""
        if not self.kept_in(text, count) or not self.output.entries:
            return False
        behind = text[len(self.head) :]
        places = [found.end() for found in WORD.finditer(behind)][: len(self.output.words[:count])]
        stretch = behind[: places[-1]] if places else ""
        more = rf"(?!\s*(?:{'|'.join(map(re.escape, starts))}))" if starts else ""
        return all(
            len(re.findall(re.escape(end) + more, stretch)) <= self.output.text.count(end)
            for end in ends
        )


@dataclass
class Step:
    """A prompt, and the turns before it."""

    prompt: Prompt
    others: list[Prompt]
    """Prompts of the same history, as other clients send it."""
    before: list[Before]
    """All turns of the session so far, oldest first."""
    plain: list[int]
    """The tokenizer's ids of the prompt's text."""
    ends: tuple[str, ...]
    """Texts of the tokens that end a turn."""

    @property
    def kept(self) -> bool:
        """Whether the template keeps the newest turn."""
        return self.before[-1].kept_in(self.prompt.text)

    @property
    def newest_kept(self) -> Before | None:
        """The newest turn that the template keeps."""
        return next(
            (turn for turn in reversed(self.before) if turn.kept_in(self.prompt.text)), None
        )


@dataclass
class Walk:
    """One session of one model; iterating it plays it."""

    setup: ModelSetup
    choose: Choices
    clients: Sequence[Client]
    """The first one is served; prompts of the others are only prepared."""
    turns: int = 5
    lossy: bool = False
    """Whether one in three entries is lost."""
    cut: bool = False
    """Whether every second turn reaches its token limit."""
    ledger: TurnLedger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = empty_ledger(self.setup)

    def __iter__(self) -> Iterator[Step]:
        model = Model(self.setup, self.ledger, self.choose)
        dialogue = start(model)
        before: list[Before] = []
        for _ in range(self.turns):
            prompts = [self._prompt(client, dialogue) for client in self.clients]
            if before:
                plain = [*self.setup.encoder.encode(prompts[0].text)]
                yield Step(prompts[0], prompts[1:], list(before), plain, self.ledger.model.ends)
            output = self._answer(model, prompts[0])
            before.append(Before(prompts[0], output))
            if not (self.lossy and self.choose.below(3) == 0):
                for entry in output.entries:
                    self.ledger.add(entry)
            go_on(dialogue, output, model)

    def _answer(self, model: Model, prompt: Prompt) -> Output:
        if self.cut and self.choose.below(2):
            return model.answer(
                prompt, reason=FinishReason.LENGTH, keep=self.choose.of((0.2, 0.5, 0.8, 0.95, 1.0))
            )
        return model.answer(prompt)

    def _prompt(self, client: Client, dialogue: object) -> Prompt:
        unseal = SEALER.of(None).open
        conversation = client(dialogue)  # type: ignore[arg-type]
        prompt = assemble(conversation, self.setup, unseal=unseal, ledger=self.ledger)
        self.ledger.keep(prompt.encoded)
        return prompt


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the common prefix."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
