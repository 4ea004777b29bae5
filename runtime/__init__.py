"""What every part needs of the world: settings, errors, sessions and connections. Imports nothing of ours."""
