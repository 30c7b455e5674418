"""Compiled arithmetic: no policy, no privacy, no randomness of its own."""
