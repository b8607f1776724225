"""Prompts are computed one after the other, and a turn that ends leaves its time to the others."""

from tests.kit.waiting import eventually
from turnwire_tools.script.prefills import PrefillQueue

LONG_S = 10_000.0


async def test_prompts_are_computed_in_order() -> None:
    done: list[str] = []
    prefills = PrefillQueue(done.append)
    for name in "abc":
        prefills.add(name, 0.0)
    await eventually(lambda: done == ["a", "b", "c"])
    prefills.add("d", 0.0)
    await eventually(lambda: done[3:] == ["d"])


async def test_prompt_of_a_turn_that_ended_takes_no_more_time() -> None:
    done: list[str] = []
    prefills = PrefillQueue(done.append)
    for name in "abc":
        prefills.add(name, LONG_S)
    prefills.add("d", 0.0)
    prefills.remove("b")
    prefills.remove("a")
    prefills.remove("unknown")
    prefills.remove("c")
    await eventually(lambda: done == ["d"])
    prefills.remove("d")
    prefills.add("e", 0.0)
    await eventually(lambda: done == ["d", "e"])
