"""The code of a job in its pods: how each pod gets the archive, and unpacks it."""
