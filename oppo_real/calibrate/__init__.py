"""Measure what a step is made of, and write it as a cost profile of the simulator (docs/calibrate.md)."""
