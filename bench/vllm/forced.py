"""Forces tokens in vLLM: a logits processor with which a model with random weights writes the
tokens that `bench.vllm.scripts` chooses.

`--logits-processors bench.vllm.forced:Forced` of `vllm serve`, or the same in `engine_args` of
`turnwire up --engine vllm`. All of a step is computed; only the choice among the logits is forced.
"""

from pathlib import Path
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from bench.vllm.scripts import Writer
from schemas.conversation import OutputFormat


class Forced(AdapterLogitsProcessor):  # type: ignore[misc]
    """The logits processor."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._writer = Writer(Path(vllm_config.model_config.model))

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> "_Turn":
        return _Turn(self._writer, _form(params.structured_outputs))


class _Turn:
    """One turn."""

    def __init__(self, writer: Writer, form: OutputFormat | None) -> None:
        self._writer = writer
        self._form = form
        self._known = False
        self._ids: list[int] | None = None

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: Any) -> Any:
        if not self._known:
            self._known, self._ids = True, self._writer.write(prompt_ids, self._form)
        if self._ids is None or len(output_ids) >= len(self._ids):
            return logits
        logits.fill_(float("-inf"))
        logits[self._ids[len(output_ids)]] = 0.0
        return logits


def _form(guided: Any) -> OutputFormat | None:
    """Returns the form of guided decoding, for the scripted agent."""
    if guided is None:
        return None
    if isinstance(guided.json, dict):
        return OutputFormat(kind="json_schema", schema=guided.json)
    return OutputFormat(kind="json_object") if guided.json_object else None
