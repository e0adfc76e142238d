"""A kill test of the service: servers, clients and databases die while a history is kept."""
