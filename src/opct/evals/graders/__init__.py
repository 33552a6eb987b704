"""Graders: pure functions from text to a verdict."""
