"""Accounting."""
from tacit.accounting.gdp import gdp_delta, gdp_epsilon, gdp_mu

__all__ = ["gdp_delta", "gdp_epsilon", "gdp_mu"]
