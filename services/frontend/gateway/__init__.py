"""The frontend's side of the bus: open turns, their attempts, and their events."""
