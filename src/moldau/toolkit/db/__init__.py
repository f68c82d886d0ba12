"""The toolkit's patterns with a database: handle once, offsets beside results, outbox.

    from moldau.toolkit.db import Store

SQLAlchemy 2, with plain and async engines. SQLite, PostgreSQL and MariaDB (MySQL) are proven.
"""

from moldau.toolkit.db.once import Store

__all__ = ["Store"]
