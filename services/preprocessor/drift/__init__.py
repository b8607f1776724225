"""Changes at the front of a session's prompts: found and reported."""
