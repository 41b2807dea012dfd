"""What several rooms of training share: tables, figures, the studies' training loop, sizes of cores."""
