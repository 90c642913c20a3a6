"""Jobs as objects in a Kubernetes cluster: created, watched, deleted, and leased."""
