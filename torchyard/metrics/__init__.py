"""What programs print about their training: one reader a format."""
