"""Finds what is wrong in a manifest of another author."""
