"""Collects what a sample needs of a turn, from the turn's events. Pure."""

from array import array
from collections.abc import Sequence

from schemas.conversation import Call, Conversation, Text
from schemas.events import (
    BlockStart,
    Delta,
    Finish,
    OutputTokens,
    Prepared,
    TokenLogprob,
    TurnEvent,
    WeightsSpan,
    corrected,
)
from schemas.token_ids import unpack_array
from services.rollouts.sampled_turn import SampleBlock, SampledTurn, answer_digests, question_of


class TurnRecorder:
    """The tokens and blocks of one turn while it runs."""

    def __init__(self, id: str, conversation: Conversation, model: str, time: float) -> None:
        """`time`: Unix time of the request."""
        self._id = id
        self._conversation = conversation
        self._model = model
        self._time = time
        self._prepared: Prepared | None = None
        self._output = array("I")
        self._logprobs: list[float | None] = []
        self._weights: list[WeightsSpan] = []
        self._blocks: list[SampleBlock] = []
        self._texts: list[list[str]] = []
        """The pieces of each block's text."""

    @property
    def output_tokens(self) -> int:
        """The number of tokens so far."""
        return len(self._output)

    def begin(self, prepared: Prepared) -> None:
        """Takes the prompt."""
        self._prepared = prepared

    def add(self, events: Sequence[TurnEvent]) -> None:
        """Takes the next events."""
        for event in events:
            if isinstance(event, OutputTokens):
                self._add_tokens(event)
            elif isinstance(event, BlockStart):
                at = self._blocks[-1].end if self._blocks else 0
                self._blocks.append(SampleBlock(event.kind, at, at, event.name, event.call_id))
                self._texts.append([])
            elif isinstance(event, Delta):
                self._texts[-1].append(event.text)
                if event.logprobs:
                    self._extend_block(event.logprobs)

    def _extend_block(self, tokens: Sequence[TokenLogprob]) -> None:
        """Adds tokens to the last block."""
        block = self._blocks[-1]
        if block.start == block.end:
            block.start = tokens[0].index
        block.end = tokens[-1].index + 1

    def _add_tokens(self, tokens: OutputTokens) -> None:
        self._output.extend(tokens.ids)
        logprobs = tokens.logprobs or [None] * len(tokens.ids)
        self._logprobs += [None if value is None else value.logprob for value in logprobs]
        self._weights += tokens.weights

    def turn(self, finish: Finish, ended: float) -> SampledTurn:
        """Returns the turn, which has ended at this Unix time."""
        assert self._prepared is not None, "a turn that ends by itself was prepared"
        count = finish.usage.kept
        has_logprobs = any(logprob is not None for logprob in self._logprobs)
        return SampledTurn(
            id=self._id,
            time=self._time,
            ended=ended,
            model=self._model,
            client=self._conversation.client,
            prompt=unpack_array(self._prepared.prompt_ids),
            output=self._output[:count],
            reason=finish.reason,
            stop_id=finish.stop_id,
            logprobs=self._logprobs[:count] if has_logprobs else [],
            blocks=self._blocks if has_logprobs else None,
            written=self._written(),
            opening=self._prepared.opening,
            images=self._prepared.images,
            weights=corrected(self._weights, finish.weights),
            experts=finish.experts,
            answers=answer_digests(self._conversation),
            question=question_of(self._conversation),
        )

    def _written(self) -> list[Text | Call]:
        """The text and calls of the turn."""
        written: list[Text | Call] = []
        for block, pieces in zip(self._blocks, self._texts, strict=True):
            text = "".join(pieces)
            if block.kind == "text":
                written.append(Text(text))
            elif block.kind != "reasoning":
                written.append(Call(block.call_id or "", block.name or "", text))
        return written
