"""Opening a log after a stop or a crash: finish what was interrupted, rebuild what is missing."""
