"""Kernels in Triton for what is neither a row nor a plan: the model's interaction. Import them late, see `rows.gpu`."""
