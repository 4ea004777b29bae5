"""A shop with a database of its own, and its application: what change data capture is there for."""
