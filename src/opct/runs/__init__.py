"""Storage of runs: folders, files, checkpoints, manifest, and progress output."""
