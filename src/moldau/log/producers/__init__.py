"""What a partition knows about its producers: sequences, epochs, open transactions, and their snapshots."""
