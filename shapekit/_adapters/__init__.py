"""What integrations share: HTTP, retries, metrics."""
