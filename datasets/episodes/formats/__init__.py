"""Formats of episodes, a file each, and the table that lists them."""
