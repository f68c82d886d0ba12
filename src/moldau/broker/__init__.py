"""The broker: Kafka's APIs over the log, one handler per file."""
