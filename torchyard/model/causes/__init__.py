"""The causes of failed jobs and the rules that show them, as tables: one module per family."""
