"""Training windows that are cut from episodes, and samplers of them."""
