"""Ray: the connection to a cluster and a pool of worker processes."""
