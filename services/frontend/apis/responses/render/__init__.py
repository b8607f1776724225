"""Renders answers of the Responses API: event streams, Response documents and compactions.

Pure. `stream` and `summary_stream` render the events of a turn; `item_writer` writes the output
items, by the classes of `items`.
"""
