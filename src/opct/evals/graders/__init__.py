"""From text to a verdict. Pure functions."""
