"""`turnwire trajectories`: turns sessions into training samples (docs/trajectories.md)."""
