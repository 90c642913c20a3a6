"""Jobs as processes on this machine and on hosts behind ssh."""
