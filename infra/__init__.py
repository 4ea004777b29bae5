"""Running it: command line, local platform, locked artifacts, service configuration. Imported by nothing else."""
