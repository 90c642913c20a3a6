"""What every package uses: the log, errors of this machine, private files, and text that others wrote."""
