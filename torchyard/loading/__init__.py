"""From the user's YAML files to a Profile."""
