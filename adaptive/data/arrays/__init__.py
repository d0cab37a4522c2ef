"""Samples stored as arrays of numbers: dlrm's `.npz`, MLPerf's binary records."""
