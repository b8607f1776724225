"""Judges everything that happens in a simulation.

- An answer, or the beginning of one, is what the model wrote (`stories.py`).
- Answers, prompts and stored answers are those of a run without faults (`answers.py`).
- A request ends otherwise only where the promises allow it (`ends.py`).
- When nothing is to do, every process is in its idle state (`idle.py`).
"""
