"""An HTTP server and the queue behind it: `Service` batches images of many callers on one model."""
