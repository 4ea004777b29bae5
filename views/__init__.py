"""What is computed: the algebra, and one small module for each view. Pure: no I/O, no session, no configuration."""
