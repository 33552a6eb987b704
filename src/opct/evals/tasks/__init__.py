"""Evaluation tasks, one file per axis."""
