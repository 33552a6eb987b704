"""Reports that compare runs: an HTML page, JSON, and a model card."""
