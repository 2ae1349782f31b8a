"""Simulated runs by the thousand: what a run is as plain data, how it is evaluated, executed and kept."""
