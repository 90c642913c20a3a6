"""A whole run, from preflight to the report: for the flow `train`, and for your own flows."""

from torchyard.tasks.train import train_flow_run, train_profile

__all__ = ["train_flow_run", "train_profile"]
