"""Tables and files in: recognised, judged, made canonical, staged in buckets by labeler."""
