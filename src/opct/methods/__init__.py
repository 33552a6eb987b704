"""The training methods, one per file: each collects the rollouts of a step and computes the loss of a micro-batch."""
