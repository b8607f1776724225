"""Collects a turn's ids, for the APIs that have no place of their own for them."""

from typing import Any

from schemas.events import OutputTokens, Prepared
from schemas.frames import unpack_ids


class TokenReport:
    """The ids of one turn so far, and log probabilities where these were requested. Empty where no ids were."""

    def __init__(self) -> None:
        self._prompt = b""
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []

    def start(self, prepared: Prepared) -> None:
        """Takes the prompt's ids."""
        self._prompt = prepared.prompt_ids

    def add(self, event: OutputTokens) -> None:
        """Takes the next ids of the output."""
        self._ids += event.ids
        if event.logprobs is not None:
            self._logprobs += [None if token is None else token.logprob for token in event.logprobs]

    def prompt(self) -> dict[str, Any]:
        """The answer's member `prompt_token_ids`."""
        return {"prompt_token_ids": unpack_ids(self._prompt)} if self._prompt else {}

    def output(self) -> dict[str, Any]:
        """The answer's members `token_ids` and `token_logprobs`: one each, null where the engine reported none."""
        if not self._prompt:
            return {}
        logprobs = {"token_logprobs": self._logprobs} if self._logprobs else {}
        return {"token_ids": self._ids, **logprobs}
