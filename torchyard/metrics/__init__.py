"""Readers of what programs print about their training, one per format."""
