"""Makes the prompt of a conversation. Pure."""
