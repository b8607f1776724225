"""The parser stage: token ids in, reasoning, text and tool call events out."""
