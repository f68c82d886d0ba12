"""Moldau's own settings: what Apache Kafka has no name for. All begin with `moldau.`, so that none can be mistaken.

The format is told in `definition.py`.
"""

OWN = """
moldau.http.listener string "" - medium static
    Where metrics and health are served over HTTP, `host:port`, or a port of 127.0.0.1 alone. Empty: nowhere.
moldau.log.format string text {text,json} low static
    How log lines are written: for people, or one JSON object per line.
moldau.log.levels list "" - low static
    Levels of single rooms from the start on, `groups=DEBUG,log=INFO`; while running: BROKER_LOGGER configs.
moldau.metrics.groups.max int 1000 [0,...] low static
    Consumer groups with series of their own; what is beyond is counted, not listed.
moldau.metrics.partitions.max int 10000 [0,...] low static
    Partitions with series of their own; what is beyond is counted, not listed.
moldau.metrics.topics.max int 1000 [0,...] low static
    Topics with series of their own; the others are added up as `_other`.
moldau.slow.request.ms int 2000 [0,...] low static
    Requests that take longer are told of in the log; waiting for records or members does not count. 0: none is.
"""
