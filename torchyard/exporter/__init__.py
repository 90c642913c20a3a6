"""The state of all runs as metrics of Prometheus."""

from torchyard.common.packages import need

need("torchyard metrics", "prometheus_client")
