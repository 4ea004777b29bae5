"""Ways into the log: each makes records, and :mod:`changelog.producer` sends them."""
