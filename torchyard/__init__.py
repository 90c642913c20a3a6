"""The engine: takes one training run from a profile to a report. It does not know Prefect."""
