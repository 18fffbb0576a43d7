"""Training: schedules, the step, parallel ranks, checkpoints, signals, records."""
