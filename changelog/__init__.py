"""The log: envelope, schemas, topics, producer, ways in, and its archive. Everything else reads what this package writes."""
