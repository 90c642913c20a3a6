"""The black box: records what each rank of a job is doing, and prints the record if the rank makes no progress.

`site/` is put on PYTHONPATH, so each Python of the job imports `site/sitecustomize.py` at its start. In a rank this
starts a thread that keeps the rank's record (rank_recorder.py), in torchrun one that prints the records of the node's
ranks into the log (node_recorder.py), and one that prints which checkpoints are complete (checkpoint_recorder.py).
Standard library only, Python 3.8 or newer; torch is queried if it is imported.
"""
