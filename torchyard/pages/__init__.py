"""What a person reads of a run: its plan, its checks, its curves and its report, as text and as Prefect's pages."""
