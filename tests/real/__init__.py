"""Tests of the real backend: real forwards of tiny random models."""
