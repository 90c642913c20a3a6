"""The state of all runs as metrics of Prometheus."""
