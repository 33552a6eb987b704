"""Settings: their schemas, and the loader that turns a file and overrides into checked settings."""
