"""The layouts in which other projects store episodes: which one a file or folder has, and what reads it."""
