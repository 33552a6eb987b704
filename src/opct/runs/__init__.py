"""What a run writes and where: folders, files, checkpoints, the manifest, progress."""
