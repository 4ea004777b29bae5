"""The batch layer: raw objects → columnar archive → batch tables. Every job can be killed and run again."""
