"""Training windows cut from episodes."""
