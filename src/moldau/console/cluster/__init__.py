"""What is known of the cluster: asking it, the snapshot a thread keeps, its history, and what changed."""
