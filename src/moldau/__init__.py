"""Moldau: Apache Kafka's design in Python."""

__version__ = "0.2.0"
