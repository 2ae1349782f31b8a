"""Posterior draws of the terms: priors at the right size, sampling, tempering, drift along a run."""
