"""Several runs, compared."""
