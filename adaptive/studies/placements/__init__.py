"""Modelled throughput of table placements on machines."""
