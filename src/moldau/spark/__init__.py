"""Topics as Spark DataFrames, and DataFrames as topics: no jar to install, columns and options of Spark's own source.

    spark = moldau.spark.session()
    spark.readStream.format("moldau").option("kafka.bootstrap.servers", …).option("subscribe", "orders").load()

Start reading with `session`, then `datasource` (what Spark calls), `stream_source` (which offsets make a batch) and
`fetch_client` (how bytes become Arrow). Nothing here needs Moldau's broker: Apache Kafka is served alike.
Importing this is cheap: PySpark is loaded by those who start a session.
"""

from importlib.util import find_spec

from moldau.spark.session import register, session

if find_spec("pyspark") is None:
    raise ImportError("moldau.spark needs PySpark: pip install 'moldau[spark]'")

__all__ = ["register", "session"]
