"""The steps by which the tables came to be, run by Alembic."""
