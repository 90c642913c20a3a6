"""The command `torchyard`."""
