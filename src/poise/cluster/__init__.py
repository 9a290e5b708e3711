"""Ray: the connection to a cluster, and calls of workers that run there."""
