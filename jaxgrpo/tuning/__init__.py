"""Choose the next run's settings by gradients through predicted courses."""
