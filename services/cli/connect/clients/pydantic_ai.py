"""pydantic-ai: code with an agent that has one tool."""

from services.cli.connect.client import library

CODE = '''\
"""An agent with one tool. Needs: pip install 'pydantic-ai-slim[openai]'"""

import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

agent = Agent(OpenAIChatModel($model, provider=OpenAIProvider(base_url=$base, api_key=$key)))


@agent.tool_plain
def read_file(path: str) -> str:
    """Reads a file."""
    return Path(path).read_text()


print(agent.run_sync(" ".join(sys.argv[1:])).output)
'''

CLIENT = library("pydantic-ai", CODE, start="python agent.py 'Read README.md'")
