"""A run's metrics in an experiment tracker."""
