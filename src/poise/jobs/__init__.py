"""Long jobs over shards of images: answers or features as folders of parts, locally or on a Ray cluster."""
