"""Describes what conversations contain only inside the frontend: images and documents with their
data, tools that this server runs. Pure."""
