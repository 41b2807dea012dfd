"""What several rooms of training share."""
