"""What takes the events of a run: each sink shows, records or sends them."""
