"""All logs of a node in its log dirs: found, placed, checkpointed, moved, kept clean."""
