"""Recording episodes from topics: matching messages to ticks, writing them, and what starts and stops it."""
