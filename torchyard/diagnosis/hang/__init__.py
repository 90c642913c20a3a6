"""From the records of all ranks to a sentence: which rank hangs, where, and why."""
