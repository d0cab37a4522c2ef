"""Triton kernels of the dense part: the interaction. Import them late, see `rows.gpu`."""
