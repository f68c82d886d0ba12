"""Makes `format("moldau")` known to Spark without a line of code.

Since 4.0 Spark imports the installed packages whose names begin with `pyspark_` when the first Python source is asked
for, and registers what each calls `DefaultSource`. So this is imported in every such process, and stays small.

Exactly-once sinks need one setting more than the format: `moldau.spark.register(spark)` makes it, and without it such a
sink refuses to write and says so.
"""

from moldau.spark.datasource import MoldauDataSource as DefaultSource

__all__ = ["DefaultSource"]
