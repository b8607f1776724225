"""The building blocks of family grammars, and the readers that run them."""
