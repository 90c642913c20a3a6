"""The models of a run: data without behaviour."""
