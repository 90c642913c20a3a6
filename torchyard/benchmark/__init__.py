"""Benchmarks: one job over several fabrics, one after the other, and the comparison."""
