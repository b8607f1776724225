"""Written output: its files and directives, and what one request gets to hear of it."""

from collections.abc import Sequence

import pytest

from schemas.conversation import Sampling
from schemas.errors import Invalid
from schemas.events import FinishReason
from turnwire_tools.script.player import Action, Fill, Playback, parse_inline, perform, place_after

PROSE = [100, 101, 102]
EOS = 2


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def play(script: Playback, *, stop_ids: Sequence[int] = (2, 3), max_tokens: int = 50) -> Playback:
    return perform(script, Sampling(max_tokens=max_tokens), stop_ids, [EOS, 3], PROSE, resumed=0)


def test_directives_in_a_request_become_actions() -> None:
    text = "Hi[[pause 200]] you[[fill 5]][[mark m]]x[[fail no luck]][[die]]"
    assert parse_inline(text) == [
        "Hi",
        Action("pause", 200.0),
        " you",
        Fill(5),
        Action("mark", text="m"),
        "x",
        Action("fail", text="no luck"),
        Action("die"),
    ]
    assert parse_inline("[[unknown]] [x]") == ["[[unknown]] [x]"]
    with pytest.raises(Invalid, match="needs a number"):
        parse_inline("[[pause soon]]")


def test_limits_and_stop_ids_end_the_output() -> None:
    script = Playback([7, 8, 9], [])
    assert play(script, max_tokens=2) == Playback([7, 8], [], FinishReason.LENGTH)
    assert play(script) == Playback([7, 8, 9], [], FinishReason.STOP, EOS)
    assert play(script, stop_ids=[EOS, 8]) == Playback([7], [], FinishReason.STOP, 8)


def test_script_goes_on_after_its_own_end_of_a_thought_that_was_ended() -> None:
    script = encode("think and think</t>answer [call] <t>again and again</t>last")
    for output, rest in (
        ("think", " and think</t>answer [call] <t>again and again</t>last"),
        ("think</t>ans", "wer [call] <t>again and again</t>last"),
        ("think</t>answer [call] <t>again</t>", "last"),
        ("thinkNOWHERE", " and think</t>answer [call] <t>again and again</t>last"),
    ):
        place = place_after(encode(output), script, ())
        assert "".join(map(chr, script[place:])) == rest, output
    assert place_after(encode("abX"), [*encode("ab"), EOS, 65, 66], [EOS]) == 3, (
        "prose in place of an early end"
    )
    assert place_after(encode("abcdef"), encode("abc"), ()) == 6
