"""Settings: what there is to set, and how a file and overrides become checked settings."""
