"""Everything that does not come from the Python index: locked by SHA-256, fetched once into a cache of the user's."""
