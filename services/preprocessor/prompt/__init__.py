"""Prompt assembly: strip, render, encode, check (`assembly`), and what makes it incremental (`history`). Pure."""
