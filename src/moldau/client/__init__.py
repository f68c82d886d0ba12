"""A small blocking client over `wire`: one connection at a time, a few questions to a cluster. For Spark tasks and for
tools; producing and consuming is confluent-kafka's.
"""
