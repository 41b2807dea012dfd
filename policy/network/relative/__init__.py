"""Action parts that the network predicts relative to what is measured."""
