"""Every run that this user can see: on this machine, in the archive, and in a cluster."""
