"""Charts as SVG: lines over numbers, sizes or days."""
