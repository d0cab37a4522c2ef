"""Files on disk: written whole or not at all, arrays without pickle, checkpoints, run directories."""
