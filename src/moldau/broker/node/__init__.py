"""A node from start to stop: who it is, its registration with the controller, its housekeeping."""
