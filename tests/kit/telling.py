"""Tells a story through its API: its stream in any batches, and its document.

`python -m tests.kit.telling` writes the expected bytes of every story again. Review
the difference.
"""

import json
from pathlib import Path
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from schemas.events import Dispatch, Prepared
from services.frontend.apis.chat.request import Chat
from services.frontend.turns.interfaces import RenderInfo
from tests.kit.bodies import CHAT, MODEL, Api
from tests.kit.events import with_dispatch
from tests.kit.stories import STORIES, Batches, Story

FIXTURES = Path(__file__).parents[1] / "fixtures" / "turns"
PREPARED = Prepared(prompt_tokens=656, max_tokens=1024)
INFO = RenderInfo(
    turn="0a1b2c",
    request_id="req_0a1b2c",
    model=MODEL,
    created=1700000000,
    clock=lambda: 1700000009.5,
)


class Telling:
    """A story through its API."""

    def __init__(self, api: Api, story: Story) -> None:
        self.api, self.story = api, story
        self.name = f"{api.name} {story.name}"
        self.file = FIXTURES / api.name / f"{story.name}.sse"
        self.choices: int = story.ask.get("n", 1)
        self.batches = batches_of(story)

    def silent(self) -> "Telling":
        """The same without dispatch events."""
        story = replace(self.story, dispatch=False, dispatch_reasoning=False)
        return Telling(self.api, story)

    def parsed(self, *, stream: bool) -> Any:
        """The parsed request."""
        fields = dict(self.story.ask)
        if stream:
            fields["stream"] = True
        else:
            fields.pop("stream_options", None)
        body = self.api.body(**fields)
        if self.api is CHAT:
            return Chat(self.story.settings).parse(encode(body), self.story.headers)
        return self.api.parse(body)

    def info(self) -> RenderInfo:
        story = self.story
        return replace(INFO, dispatch=story.dispatch, dispatch_reasoning=story.dispatch_reasoning)

    def stream(self, batches: Batches | None = None) -> bytes:
        """The stream of the turn in these batches, by default of one event each."""
        renderer = self.parsed(stream=True).renderer(self.info())
        stream = renderer.start([PREPARED] * self.choices)
        if batches is None:
            batches = [(choice, [event]) for choice, events in self.batches for event in events]
        for choice, events in batches:
            stream += renderer.render(events, choice)
        return bytes(stream)

    def document(self) -> bytes:
        """The document of the turn."""
        collector = self.parsed(stream=False).collector(self.info())
        collector.start([PREPARED] * self.choices)
        for choice, events in self.batches:
            collector.add(events, choice)
        return bytes(collector.body())


def batches_of(story: Story) -> Batches:
    """The batches, with the dispatch of every complete call and of no other."""
    made: Batches = []
    for choice, events in story.choices or [(0, story.events)]:
        written = [event for event in events if not isinstance(event, Dispatch)]
        made.append((choice, [*written]))
    for number in {choice for choice, _ in made}:
        places = [at for at, (choice, _) in enumerate(made) if choice == number]
        whole = with_dispatch(*(made[at][1] for at in places))
        for at, events in zip(places, whole, strict=True):
            made[at] = (number, events)
    return made


def own() -> list[Telling]:
    """Every story through its API."""
    return [Telling(api, story) for api, stories in STORIES.items() for story in stories]


def named(api: Api, name: str) -> Telling:
    """The story of an API with this name."""
    (story,) = [story for story in STORIES[api] if story.name == name]
    return Telling(api, story)


if __name__ == "__main__":
    for told in own():
        told.file.write_bytes(told.stream())
        if not told.story.failed:
            whole = json.dumps(json.loads(told.document()), indent=1, ensure_ascii=False)
            told.file.with_suffix(".json").write_text(whole + "\n")
