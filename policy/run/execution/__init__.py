"""Which of the actions that a policy predicts at each tick are carried out."""
