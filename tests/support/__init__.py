"""Helpers that several tests need: streams of batches, simulated devices, ranks, hostile files, slow twins."""
