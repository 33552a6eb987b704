"""Judges: what they are asked, how their answers are read, what they cost, and how far they agree with people."""
