"""What people pass, checked once: tables, labels, bounds, seeds and parameters, with every message in one place."""
