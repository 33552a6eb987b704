"""Sampling by vLLM, on this machine."""
