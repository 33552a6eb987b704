"""Training: setup, loop, checkpoints, resume and validation."""
