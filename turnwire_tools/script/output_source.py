"""Decides what the script engine writes for a request: a script that the prompt names, output that
the prompt contains, or the scripted agent's reply. Holds the tokenizer; no IO of its own."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache

from tokenizers import Tokenizer

from schemas.errors import Invalid
from services.families import Family
from services.images.image_data import UnreadableImage, read_pixels
from services.worker.engine import EngineImage, EngineRequest
from turnwire_tools.script import player
from turnwire_tools.script.agent import Reply, act, compose
from turnwire_tools.script.agent_prompt import answered, read_prompt

_TAILS = (48, 160)
"""The play directive is first looked for in this number of tokens at the prompt's end: a long
prompt is not decoded whole. The last directive counts: one that stands in few tokens need not be
looked for in more."""
_EXAMPLE = "x\n[[play some-text n=512 delay=0.5 burst=4 id=r7]] [[play"
_COMPILED = 256
_SAY = re.compile(r"\[\[say\]\](.*?)\[\[/say\]\]", re.DOTALL)
_OVER = Reply("The request's output is complete.", "The request's script has no further turn.")


class OutputSource:
    """The output for each request. Thread-safe: `output` is slow on long prompts and belongs in a
    thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        scripts: Mapping[str, player.Script],
        family: Callable[[], Family],
        *,
        request_mode: bool,
    ) -> None:
        """`family`: the agent writes in its form; called on the thread of `output`, when it is
        first needed."""
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._scripts = scripts
        self._family = family
        self._request_mode = request_mode
        self._prose = self._encode(player.PROSE)
        # Decoding 160 tokens costs 200 us. Where a token's text does not depend on its neighbours,
        # joining costs 10.
        self._piece = cache(lambda token: self._decode([token]))
        self._by_pieces = "".join(map(self._piece, self._encode(_EXAMPLE))) == _EXAMPLE
        compiled = lru_cache(_COMPILED)
        self._compiled = compiled(
            lambda name, n: player.compile_script(scripts[name], self._encode, self._prose, n)
        )

    def find_script(
        self, request: EngineRequest
    ) -> tuple[player.PlayDirective, player.Playback] | None:
        """The script that the prompt's tail names; None if it names none. Quick.

        Raises Invalid for an unknown script.
        """
        if not self._scripts:
            return None
        end = len(request.token_ids) - request.resumed
        for tokens in _TAILS:
            directive = self._directive(request.token_ids[max(0, end - tokens) : end])
            if directive is not None:
                return self._played(directive, request)
        return None

    def output(self, request: EngineRequest) -> tuple[player.PlayDirective, player.Playback]:
        """The script that the user's request names anywhere, the output that the prompt contains
        (in request mode), or the agent's reply. Takes milliseconds on long prompts, and on each
        image.

        Raises Invalid for a malformed directive, or a damaged image.
        """
        ids = list(request.token_ids[: len(request.token_ids) - request.resumed])
        seen = self._see(ids, request.images)
        for image in reversed(request.images):
            del ids[image.at : image.at + image.tokens]
        prompt = self._decode(ids)

        directive = self._directive_in_request(prompt)
        if directive is not None:
            return self._played(directive, request)
        script = self._script_for(prompt, request, seen)
        compiled = player.compile_script(script, self._encode, self._prose)
        return player.PlayDirective("-"), self._perform(compiled, request)

    def _directive_in_request(self, prompt: str) -> player.PlayDirective | None:
        """The directive in the user's request. Clients put other messages after it, so that it is
        not in the prompt's tail."""
        if not self._scripts or "[[play " not in prompt:
            return None
        view = read_prompt(prompt)
        return None if view.answers else player.find_directive(view.request)

    def _script_for(self, prompt: str, request: EngineRequest, seen: str) -> player.Script:
        """The output in the request, or else the agent's reply. `seen`: what its images show."""
        text = self._output_in_request(prompt) if self._request_mode else None
        if text is None:
            return [act(prompt, self._family(), request.guided, seen)]
        # Equal requests may have different outputs.
        turn = request.id.partition(".")[0]
        return player.parse_inline(text.replace("[[turn]]", turn))

    def _see(self, ids: Sequence[int], images: Sequence[EngineImage]) -> str:
        """Decodes all images; returns a line for each that came after the last answer."""
        lines = []
        for image in images:
            try:
                width, height = read_pixels(image.data).size
            except UnreadableImage as error:
                raise Invalid(str(error), param="messages") from None
            if not answered(self._decode(ids[image.at :])):
                lines.append(f"I see an image of {width} x {height} pixels ({image.hash[:8]}).")
        return "\n".join(lines)

    def _played(
        self, directive: player.PlayDirective, request: EngineRequest
    ) -> tuple[player.PlayDirective, player.Playback]:
        if directive.name not in self._scripts:
            names = ", ".join(sorted(self._scripts))
            raise Invalid(
                f"there is no script {directive.name!r}; there are: {names}", param="prompt"
            )
        return directive, self._perform(self._compiled(directive.name, directive.n), request)

    def _perform(self, script: player.Playback, request: EngineRequest) -> player.Playback:
        stops = request.stop_ids
        output = request.token_ids[len(request.token_ids) - request.resumed :]
        resumed = player.place_after(output, script.ids, stops)
        return player.perform(
            script, request.sampling, stops, self._eos_ids, self._prose, resumed=resumed
        )

    def _directive(self, tail: Sequence[int]) -> player.PlayDirective | None:
        if self._by_pieces:
            text = "".join(map(self._piece, tail))
        else:
            text = self._decode(tail)
        directive = player.find_directive(text)
        if directive is None:
            return None
        # One that has been played already must not be played again when its calls' results come.
        what_follows = text.rpartition("[[play ")[2]
        return None if answered(what_follows) else directive

    def _output_in_request(self, prompt: str) -> str | None:
        """The n-th `[[say]]` of the last request, where n counts the assistant's turns since it."""
        view = read_prompt(prompt)
        turns = _SAY.findall(view.request)
        if not turns:
            return None
        if view.answers < len(turns):
            return str(turns[view.answers])
        return compose(_OVER, view, self._family())

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text
