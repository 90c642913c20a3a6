"""The nouns of a run, without behaviour."""
