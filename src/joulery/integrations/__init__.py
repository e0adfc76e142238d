"""Where frameworks meet Joulery: each file here knows one of them, and nothing else does."""
