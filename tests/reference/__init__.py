"""A slow, independent reference of the pipeline: one loop pass an event, plain Python, linear costs."""
