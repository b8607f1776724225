"""Reads the images and documents of admitted requests: fetches, checks and stores images, and
converts PDFs to text."""
