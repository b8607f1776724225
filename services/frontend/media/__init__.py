"""Reads the images and documents of requests, as a part of their admission: fetches, checks and
stores images, and converts PDFs to text."""
