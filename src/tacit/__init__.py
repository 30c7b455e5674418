"""Tacit: models trained under differential privacy beyond DP-SGD, each with a certificate."""
