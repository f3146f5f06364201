"""What integrations share: HTTP, model calls, task queues, metrics."""
