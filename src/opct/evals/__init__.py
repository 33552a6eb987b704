"""Evaluation: tasks, graders, metrics and statistics."""
