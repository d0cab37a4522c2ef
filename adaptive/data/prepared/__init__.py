"""Data sets written once as blocks of batches, and mapped into memory."""
