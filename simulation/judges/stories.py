"""Judges one answer by what the model wrote, as soon as its request has ended. Pure."""

from collections.abc import Iterator, Sequence

from simulation.sessions import Answer as Wanted
from turnwire_tools.clients.answer import ClientAnswer


def mistakes(
    answer: ClientAnswer, wanted: Wanted, *, is_whole: bool, is_live: bool
) -> Iterator[str]:
    """Yields what is wrong. Whatever the end of its request: what came is the beginning of the
    answer.

    `is_whole`: the request ended with its answer; `is_live`: in a stream from its beginning, which
    has all dispatches.
    """
    story, got = wanted.story, answer.story
    if answer.end == "error" and answer.ends != 1:
        yield f"{answer.ends} ends, with an error"
    if is_whole:
        if got != story:
            yield f"the answer has {got}, wanted {story}"
        if answer.ends != 1:
            yield f"{answer.ends} ends"
        if answer.end != ("calls" if wanted.results else "stop"):
            yield f"the end is {answer.end}"
        if answer.usage is None:
            yield "no usage"
    elif not _begins(story, _as_far_as_complete(answer)):
        yield f"{got} is not the beginning of {story}"
    calls = [text for kind, text in story if kind == "call"]
    if answer.dispatched != calls[: len(answer.dispatched)]:
        yield f"dispatched {answer.dispatched}, the calls are {calls}"
    elif is_whole and is_live and answer.dispatched != calls:
        yield f"dispatched {answer.dispatched} of {calls}"


def _as_far_as_complete(answer: ClientAnswer) -> list[tuple[str, str]]:
    """The blocks; a call that did not come to its end is a cut one."""
    blocks: list[tuple[str, str]] = [*answer.story]
    if blocks and blocks[-1][0] == "call" and not answer.blocks[-1].complete:
        blocks[-1] = ("cut call", f"{answer.blocks[-1].full_name} {answer.blocks[-1].text}")
    return blocks


def _begins(whole: Sequence[tuple[str, str]], part: Sequence[tuple[str, str]]) -> bool:
    """Whether blocks are the beginning of an answer; the last one may be cut."""
    if len(part) > len(whole):
        return False
    for at, (kind, text) in enumerate(part):
        wanted_kind, wanted = whole[at]
        if (kind, text) == (wanted_kind, wanted):
            continue
        last = at == len(part) - 1
        if (
            not last
            or (kind == "cut call") != (wanted_kind == "call")
            or kind not in (wanted_kind, "cut call")
        ):
            return False
        if kind == "cut call":
            name, _, arguments = text.partition(" ")
            if not wanted.startswith(name + " ") or not _compact(wanted).startswith(
                _compact(f"{name} {arguments}")
            ):
                return False
        elif not wanted.startswith(text):
            return False
    return True


def _compact(text: str) -> str:
    """Arguments without the white space in which JSON writers differ."""
    return text.replace(" ", "")
