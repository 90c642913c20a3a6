"""The only way to an API server."""

from torchyard.common.packages import need

need("a job in a cluster", "kubernetes", "urllib3", "httpx", "httpcore", "h2")
