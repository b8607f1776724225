"""Judges everything that happens in a simulation.

- Answers, prompts and stored answers are those of a run without faults (`answers.py`). What an answer must be is known
  to the clients, too, which judge each one as it ends (`simulation/clients.py`).
- A request ends otherwise only where the promises allow it (`ends.py`).
- When nothing is to do, every process is in its idle state (`idle.py`).
"""
