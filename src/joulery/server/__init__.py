"""The HTTP API and dashboard over the store."""
