"""Reading images in parallel and preparing their views."""
