"""The black box: what each rank of a job is doing, kept beside it and printed if it makes no progress.

`site/` is put on PYTHONPATH, so each Python of the job imports `site/sitecustomize.py` at its start: in a rank that
starts a thread which keeps the rank's record (rank_recorder.py), in torchrun one which prints the records of the node's
ranks into the log (node_recorder.py). Standard library alone, Python 3.8 or newer; torch is asked if it is there.
"""
