"""`conversation` objects: their paths, and the turns that responses take in them."""
