"""LangChain: code with an agent that has one tool."""

from services.cli.connect.client import library

CODE = '''\
"""An agent with one tool. Needs: pip install langchain langchain-openai"""

import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=$base, api_key=$key, model=$model)


def read_file(path: str) -> str:
    """Reads a file."""
    return Path(path).read_text()


agent = create_agent(model, [read_file])
result = agent.invoke({"messages": [{"role": "user", "content": " ".join(sys.argv[1:])}]})
print(result["messages"][-1].content)
'''

CLIENT = library("LangChain", CODE, start="python agent.py 'Read README.md'")
