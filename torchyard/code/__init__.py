"""A folder of this machine as the code of a job: which of its files, packed, and stored on this machine."""
