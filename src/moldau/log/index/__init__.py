"""The files beside a segment that make it searchable: by offset, by time, by aborted transaction."""
