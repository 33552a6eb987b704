"""Judges: rubrics, parsing, cost, and calibration against human labels."""
