"""The doctor: what a server's environment, unit and arguments are, and how they differ from what they should be."""
