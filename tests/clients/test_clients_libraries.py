"""Libraries: the program that `turnwire connect` prints makes a call with a tool."""

import sys
from pathlib import Path

import pytest

from tests.clients.machine import Machine
from tests.clients.packages import AI_SDK, LANGCHAIN, LITELLM, NODE, PYDANTIC_AI, PythonPackage
from tests.clients.session import Session

pytestmark = pytest.mark.timeout(900)

PROMPT = "Read notes.txt, please."


async def check(machine: Machine, session: Session, *command: str | Path) -> None:
    """Runs the program and checks its requests."""
    machine.write("notes.txt", "alpha one\n")
    ran = (await machine.run(*command, PROMPT)).ok()
    assert ran.out.strip() == "Done; the tool answered: alpha one"
    session.check_served()
    assert len(session.main) == 2
    assert await session.prefix_breaks(session.main) == []


@pytest.mark.parametrize(
    ("name", "package"),
    [("langchain", LANGCHAIN), ("litellm", LITELLM), ("pydantic-ai", PYDANTIC_AI)],
)
async def test_python_libraries_read_every_answer(
    machine: Machine, session: Session, name: str, package: PythonPackage
) -> None:
    machine.environment |= {
        "PYTHONPATH": str(package.find()),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    machine.write("agent.py", await machine.print_settings(name, session.wire.url))
    await check(machine, session, sys.executable, "agent.py")


async def test_the_ai_sdk_reads_every_answer(machine: Machine, session: Session) -> None:
    packages = AI_SDK.find().parents[1]
    machine.write("agent.mjs", await machine.print_settings("ai-sdk", session.wire.url))
    (machine.project / "node_modules").symlink_to(packages)
    await check(machine, session, NODE.find(), "agent.mjs")
