"""What several rooms of training share: tables, the training loop of the studies, sizes of cores,
episodes."""
