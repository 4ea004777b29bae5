"""DAG files: they name tasks and their order, and compute nothing."""
