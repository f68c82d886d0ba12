"""The replicas of this node: led or followed, read and written, moved between log dirs."""
