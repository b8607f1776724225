"""Responses requests: from the JSON of a body to a `Conversation`. Pure."""
