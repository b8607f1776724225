"""What earlier requests had in common with later ones: read, checked and encoded once."""
