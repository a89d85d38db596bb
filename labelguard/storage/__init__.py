"""Columns and files on disk: blocks, buckets, durable writes, work over buckets."""
