"""An MCP server over standard input and output with the tools of `tests.kit.tool_catalogue`:
`python -m tests.clients.many_tools LOG`. It writes the name of each tool that is called to a file."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.kit.tool_catalogue import catalogue


def answer(method: str, params: dict[str, Any], log: Path) -> dict[str, Any] | None:
    """The result of a request; None: the server lacks the method."""
    match method:
        case "initialize":
            info = {"name": "many", "version": "1"}
            version = params.get("protocolVersion", "2025-06-18")
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            tools = [
                {"name": name, "description": about, "inputSchema": schema}
                for name, about, schema in catalogue()
            ]
            return {"tools": tools}
        case "tools/call":
            with log.open("a") as file:
                file.write(params["name"] + "\n")
            return {"content": [{"type": "text", "text": f"{params['name']} ran"}]}
        case "ping":
            return {}
    return None


def main() -> None:
    """Answers until the input ends."""
    log = Path(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}), log)
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        else:
            reply["result"] = result
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
