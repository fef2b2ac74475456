"""Weights from and to other systems, one file for each owner."""
