"""Checks prompts after their turns were sent: each against the last one of its session, and some by
the reference tokenizer and template engine."""

from schemas.conversation import Conversation
from services.preprocessor.changes.prompt_changes import PromptChangeReporter
from services.preprocessor.prompt.prompt_maker import Prompt
from services.preprocessor.threads import PromptThreads
from services.runtime.process import Process
from services.templates.renderer import TemplateRenderer
from services.tokenization.encoder import Encoder

CHECK_EVERY = 500
"""One prompt in this many is checked: both tokenizers encode its end. The trials at load cannot
cover every case."""
CHECK_CHARS = 32_768
"""Limit of that end. All of a large prompt would cost 0.1 s in a thread, on average 0.2 ms a
prompt."""


class PromptChecks:
    """Checks the prompts of one preprocessor, and reports what it finds in its log."""

    def __init__(
        self,
        process: Process,
        threads: PromptThreads,
        encoder: Encoder,
        renderer: TemplateRenderer,
        max_bytes: int,
    ) -> None:
        """`max_bytes` bounds the prompts that are kept for comparison."""
        self._process = process
        self._threads = threads
        self._encoder = encoder
        self._renderer = renderer
        self._changes = PromptChangeReporter(process.log, process.metrics, max_bytes)
        self._prompts = 0

    def check_prompt(self, conversation: Conversation, prompt: Prompt) -> None:
        """Checks the prompt of a turn that a worker has."""
        self._changes.report(conversation, prompt)
        self._prompts += 1
        if self._prompts % CHECK_EVERY == 0:
            end = prompt.text[-CHECK_CHARS:]
            self._process.spawn(self._compare_tokenizers(end), "compare tokenizers")
            self._process.spawn(self._compare_template_engines(), "compare template engines")
            self._renderer.keep_sample()

    async def _compare_tokenizers(self, text: str) -> None:
        difference = await self._threads.run(self._encoder.find_difference, text)
        if difference is not None:
            self._process.log.error(
                "preprocessor.tokenizers_differ",
                found=difference,
                remedy="off until the next start",
            )

    async def _compare_template_engines(self) -> None:
        """Compares the rendering that was kept at the last check."""
        difference = await self._threads.run(self._renderer.find_difference)
        if difference is not None:
            self._process.log.error(
                "preprocessor.template_engines_differ",
                found=difference,
                remedy="off until the next start",
            )
