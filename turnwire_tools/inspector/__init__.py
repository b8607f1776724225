"""`turnwire inspect`: serves a page that shows the turns on the bus."""
