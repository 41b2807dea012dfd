"""Which files a path means, which project's layout they have, and what reads it."""
