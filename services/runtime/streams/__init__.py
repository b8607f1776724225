"""Streams between processes: frames, credit, and logs of turns that can be replayed."""
