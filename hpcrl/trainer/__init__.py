"""Training: the PPO family's loop, the supervised warm start, evaluation, checkpoints and records."""
