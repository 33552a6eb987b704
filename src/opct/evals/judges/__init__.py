"""Judges: a judge is a scorer. Rubrics, parsing, and calibration against human labels."""
