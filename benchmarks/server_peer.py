"""Zeus's batch-size server on an SQLite file; the benchmark starts it in its own environment."""

from __future__ import annotations

import asyncio
import os
import sys


def main(database: str, port: int) -> None:
    """Make its tables and serve."""
    os.environ["ZEUS_BSO_DATABASE_URL"] = f"sqlite+aiosqlite:///{database}"
    os.environ["ZEUS_BSO_LOG_LEVEL"] = "ERROR"
    import uvicorn
    from zeus.optimizer.batch_size.server.database import schema
    from zeus.optimizer.batch_size.server.database.db_connection import sessionmanager
    from zeus.optimizer.batch_size.server.router import app

    async def make_tables() -> None:
        async with sessionmanager.connect() as connection:
            await connection.run_sync(schema.Base.metadata.create_all)

    asyncio.run(make_tables())
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
