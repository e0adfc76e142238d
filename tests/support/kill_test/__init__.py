"""A service under kill -9: servers, clients and databases that die while a history is kept."""
