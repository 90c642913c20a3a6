"""The code of a job on its host: the program that unpacks it."""
