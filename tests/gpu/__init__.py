"""Checks that need a CUDA device."""
