"""A whole run, from preflight to the report: for the flow `train`, and for flows of your own."""

from torchyard.tasks.train import train_flow_run, train_profile

__all__ = ["train_flow_run", "train_profile"]
