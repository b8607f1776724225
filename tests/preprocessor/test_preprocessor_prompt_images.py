"""Images in prompts: the tokens of the library's own processor, in their place, with keys of their
own."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Part,
    Result,
    ResultPart,
    Text,
    ToolSpec,
)
from schemas.errors import EngineFailed
from schemas.token_ids import pack_ids
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_images import place_images
from services.preprocessor.prompt.prompt_maker import Prompt
from services.runtime.config.stages import PreprocessorConfig
from services.templates.wording import image_slot, media_note
from services.tokenization.image_processor import Expansion
from tests.kit.vision_model import noise, reference_processor

SIZES = [(300, 200), (56, 56), (640, 480), (30, 500), (1, 1)]


def image(number: int, size: tuple[int, int] = SIZES[0]) -> Media:
    width, height = size
    name = f"{number:08x}{width:016x}{height:016x}"
    return Media("image", "image/png", 99, hash=name, width=width, height=height)


def asked(*parts: Part) -> Conversation:
    return Conversation("m", [Message("user", list(parts))])


def test_tokens_are_those_of_the_library(vision_dir: Path, vision_setup: ModelSetup) -> None:
    processor = reference_processor(vision_dir, "qwen" if vision_dir.name == "qwen" else "idefics")
    shown: dict[str, Any] = {"type": "image"}
    parts = [{"type": "text", "text": "Look at "}, shown, {"type": "text", "text": " and "}, shown]
    for size in SIZES:
        rendered = vision_setup.template.render([{"role": "user", "content": parts}], tools=[])
        images = [[noise(*size, 1), noise(*SIZES[2], 2)]]
        expected = processor(text=[rendered], images=images, add_special_tokens=False)["input_ids"]
        asked_for = (Text("Look at "), image(1, size), Text(" and "), image(2, SIZES[2]))
        prompt = assemble(asked(*asked_for), vision_setup)
        assert list(prompt.ids) == list(expected[0]), size
        check_places(prompt, vision_setup)


def test_images_of_the_first_instructions_are_shown_in_order(vision_setup: ModelSetup) -> None:
    leading = [Message("developer", [image(0)]), Message("system", [image(1)])]
    found = assemble(Conversation("m", [*leading, *asked(image(2)).messages]), vision_setup)
    assert [shown.hash for shown in found.images] == [image(n).hash for n in range(3)]
    check_places(found, vision_setup)


def check_places(prompt: Prompt, setup: ModelSetup) -> None:
    """Every placeholder is in an image, and images do not overlap."""
    assert setup.images is not None
    placeholder = setup.tokenizer.encode(setup.images.placeholder, add_special_tokens=False)[0]
    inside = [at for one in prompt.images for at in range(one.at, one.at + one.tokens)]
    assert sorted(set(inside)) == inside
    found = {at for at, token in enumerate(prompt.ids) if token == placeholder}
    assert found <= set(inside)
    assert all(placeholder in prompt.ids[one.at : one.at + one.tokens] for one in prompt.images)


images = st.builds(image, st.integers(0, 3), st.sampled_from(SIZES))
texts = st.builds(
    Text,
    st.text("ab <|>\n", min_size=1, max_size=8)
    | st.sampled_from(["<image>", "<|image_pad|>", "|>"]),
)
blocks = st.lists(images | texts, max_size=5)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Sessions with images in questions and results."""
    messages = [Message("user", [Text("Begin."), *draw(blocks)])]
    for number in range(draw(st.integers(0, 3))):
        parts: list[ResultPart] = list(draw(blocks))
        messages.append(Message("assistant", [Text("So."), Call(f"c{number}", "read", "{}")]))
        messages.append(Message("tool", [Result(f"c{number}", parts)]))
    return Conversation("m", messages, tools=[ToolSpec("read")])


def shown(conversation: Conversation) -> list[str]:
    found = list[str]()
    for message in conversation.messages:
        for part in message.parts:
            inner: Sequence[Part | ResultPart] = part.parts if isinstance(part, Result) else [part]
            found += [one.hash for one in inner if isinstance(one, Media)]
    return found


@given(conversation=conversations(), more=blocks)
def test_each_image_is_in_its_place_and_a_longer_session_extends_the_prompt(
    vision_setup: ModelSetup, conversation: Conversation, more: list[Media | Text]
) -> None:
    first = assemble(conversation, vision_setup)
    assert [one.hash for one in first.images] == shown(conversation)
    check_places(first, vision_setup)
    added = [Message("assistant", [Text("Done.")]), Message("user", [Text("And"), *more])]
    messages = [*conversation.messages, *added]
    longer = assemble(Conversation("m", messages, tools=conversation.tools), vision_setup)
    last = len(first.images)
    assert longer.images[:last] == first.images
    end = first.images[-1].at + first.images[-1].tokens if first.images else 0
    assert longer.ids[:end] == first.ids[:end]


def test_slot_in_a_text_is_text(vision_setup: ModelSetup) -> None:
    slot = image_slot("e" * 40)
    prompt = assemble(asked(Text(slot), image(1)), vision_setup)
    assert slot in prompt.text
    assert len(prompt.images) == 1


def test_model_without_vision_gets_a_note(setup: ModelSetup) -> None:
    prompt = assemble(asked(Text("Look"), image(1), Text("at it")), setup)
    assert media_note(image(1)) in prompt.text
    assert prompt.images == []
    assert "vision" not in setup.card.features


def test_ids_are_found_at_whole_tokens_and_others_are_an_error() -> None:
    expansion = Expansion("x", pack_ids([7, 7, 8]))
    assert [one.at for one in place_images([1, 7, 7, 8, 7, 7, 8], [("a", expansion)] * 2)] == [1, 4]
    with pytest.raises(EngineFailed):
        place_images([1, 7, 7, 9], [("a", expansion)])
    # The bytes of 256 are also in the middle of two other ids.
    expansion = Expansion("x", pack_ids([256]))
    assert [one.at for one in place_images([0x10000, 0, 256], [("a", expansion)])] == [2]


@pytest.mark.parametrize("vision_dir", ["qwen"], indirect=True)
def test_what_the_processor_or_the_template_cannot_show_is_not_shown(
    vision_dir: Path, vision_setup: ModelSetup, tmp_path: Path
) -> None:
    prompt = assemble(asked(image(1, (2000, 3)), image(2)), vision_setup)
    assert "not shown to this model: its processor takes none of 2000 x 3 pixels]" in prompt.text
    assert [one.hash for one in prompt.images] == [image(2).hash]
    template = (vision_dir / "chat_template.jinja").read_text()
    for file, text, reason in (
        ("chat_template.jinja", template.replace("<|image_pad|>", ""), "renders no images"),
        ("preprocessor_config.json", "{", "image processor"),
    ):
        blind = tmp_path / file
        shutil.copytree(vision_dir, blind)
        (blind / file).write_text(text)
        found = ModelSetup.load(PreprocessorConfig(model=str(blind)))
        assert reason in found.no_vision_reason
        assert "vision" not in found.card.features
