"""Converts the body of a Responses request to a `Conversation`. Pure."""
