"""Faster CPU versions of single operations, each with its measured gain."""
