"""Sampling: prompts in, completions out."""
