"""Recorded requests of real clients, which are not part of the repository: `AGENT_CAPTURES_DIR`
names their folder."""

import os
from pathlib import Path

CAPTURES = Path(os.environ.get("AGENT_CAPTURES_DIR", "no captures"))
REASON = "AGENT_CAPTURES_DIR names no folder of recorded requests"
