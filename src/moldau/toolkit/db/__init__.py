"""The toolkit's patterns with a database: handle once, offsets beside results, outbox.

    from moldau.toolkit.db import Store

SQLAlchemy 2, with plain and async engines. SQLite, PostgreSQL and MariaDB (MySQL) are proven.
"""

from moldau.toolkit.db.exactly_once import ExactlyOnce
from moldau.toolkit.db.once import Store
from moldau.toolkit.db.outbox import Outbox
from moldau.toolkit.db.relay import OutboxRelay, Receipts

__all__ = ["ExactlyOnce", "Outbox", "OutboxRelay", "Receipts", "Store"]
