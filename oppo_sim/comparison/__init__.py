"""Comparisons: policies on one scenario under the same seeds and on the same draws of the machine."""
