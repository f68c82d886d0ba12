"""Messages for later: at a time, after a while, by cron; cancelled, or delivered once.

`sending` asks for them, `relay` sends them when they are due (`moldau relay`), `shard` decides, `topics` says where
everything lies. Everything is in topics: a relay has nothing on its disk that anybody would miss.
"""

from moldau.toolkit.delays.relay import DelayRelay
from moldau.toolkit.delays.sending import Delays

__all__ = ["DelayRelay", "Delays"]
