"""The raw archive: objects exactly as Secor writes them, a reader, a writer, and an archiver of our own."""
