"""Sampling by vLLM, in this machine or on a server."""
