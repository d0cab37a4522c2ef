"""Data sets whose samples are stored as batches have them, ids already rows: written once, mapped into memory."""
