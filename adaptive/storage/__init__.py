"""Files on disk: atomic writes, arrays without pickle, checkpoints, run directories."""
