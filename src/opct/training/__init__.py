"""From settings to trained weights."""
