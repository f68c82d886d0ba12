"""The active controller: commands in, metadata records out; and the way to it from every node."""
