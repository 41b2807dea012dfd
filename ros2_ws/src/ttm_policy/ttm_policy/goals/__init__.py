"""Goals: an instruction that is carried out from an empty memory until it is done, or ended otherwise."""
