"""The log: envelope, schemas, topics, producer, ways in, and its archive."""
