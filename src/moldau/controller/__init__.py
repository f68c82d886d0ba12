"""The cluster image, and the controller as a pure function from (image, command) to metadata records."""
