"""A person drives by the motion of a hand: of a tracked controller, or of a leader arm."""
