"""Run folders in an object store, for processes that have no disk that outlives them."""
