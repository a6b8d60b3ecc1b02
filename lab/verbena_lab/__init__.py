"""Verbena's lab: turns result files of `verbena bench` into report pages."""
