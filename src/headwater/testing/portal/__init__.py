"""A simulated portal: what it is asked, what it answers, in memory and over HTTP."""
