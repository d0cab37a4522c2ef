"""Commands on what was trained: evaluate it, predict with it, export it."""
