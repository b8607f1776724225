"""Reads reasoning items, which may also carry the results of tools that this server ran."""

from collections.abc import Sequence

import msgspec

from schemas.conversation import Call, Reasoning
from schemas.events import HostedResult
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.compaction import TextSealer
from services.frontend.apis.responses.parse.items.history import ItemHistory
from services.frontend.apis.responses.parse.tools.request_tools import RequestTools
from services.frontend.content.hosted_tools import result_part, unpack


class ReasoningReader:
    """Adds reasoning items to the history."""

    def __init__(
        self,
        history: ItemHistory,
        tools: RequestTools,
        sealer: TextSealer | None,
    ) -> None:
        self._history = history
        self._tools = tools
        self._sealer = sealer

    def read(self, item: wire.ReasoningItem, field_path: str) -> None:
        """Adds reasoning, or the results that it carries. Raises Invalid."""
        results = _carried_results(item.encrypted_content)
        if results is None:
            self._add_reasoning(item)
        else:
            self._add_results(results, field_path)

    def _add_reasoning(self, item: wire.ReasoningItem) -> None:
        """Adds reasoning: its text, else its seal, else its summary, which also replaces a foreign
        seal. A summary that repeats the text, as ours do, is left out."""
        text = "".join(part.text for part in item.content or ())
        summary = [part.text for part in item.summary or () if part.text]
        summary_text = "\n\n".join(summary)
        seal = item.encrypted_content or None
        if summary_text and not text:
            text = self._summarized_text(summary_text, seal)

        if not text and not seal:
            self._history.add(id=item.id)
            return
        if text == summary_text:
            summary = []
        self._history.add(Reasoning(text or None, seal, summary, item.id))

    def _summarized_text(self, summary_text: str, seal: str | None) -> str:
        """The text of reasoning that has only a summary; "" if its seal is opened later."""
        if not seal:
            return summary_text
        if self._sealer is None:
            return ""
        return self._sealer.open(seal) or summary_text

    def _add_results(self, results: Sequence[HostedResult], field_path: str) -> None:
        """Adds the results of the previous searches, which become calls. Searches of a tool that is
        not served stay text."""
        served = [result for result in results if self._tools.runs(result.name)]
        if not served:
            return
        self._history.add_hosted_calls(
            [Call(result.call_id, result.name, result.arguments) for result in served]
        )
        for result in map(result_part, served):
            self._history.add_result(
                result.call_id, result.parts, field_path, is_error=result.is_error
            )


def _carried_results(blob: str | None) -> list[HostedResult] | None:
    """The results in the `encrypted_content` of reasoning; None where it is something else."""
    data = unpack(blob)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=list[HostedResult])
    except (msgspec.DecodeError, RecursionError):
        return []
