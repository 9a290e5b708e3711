"""Finds and reads images."""

from __future__ import annotations

from poise.images.find import SUFFIXES, find_images
from poise.images.read import MAX_PIXELS, LoadedImage, read_image

__all__ = ["MAX_PIXELS", "SUFFIXES", "LoadedImage", "find_images", "read_image"]
