"""Supervised warm start, on the engine and the checkpoints of RL."""
