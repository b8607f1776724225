"""turnwire trajectories: sessions as training samples (docs/trajectories.md)."""
