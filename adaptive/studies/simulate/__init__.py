"""Run the planner and policies over ids alone, to predict what a device size gives.

Rows have no values here, so their movement is unknown and nothing is skipped by movement. Deferral by visits works as
in training.
"""
