"""The frontend's side of the bus: open turns, their requests and their events."""
