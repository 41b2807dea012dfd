"""A robot whose sensors fail on demand, and the faults under which a policy must not move it."""
