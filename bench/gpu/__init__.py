"""Parts of bench/gpu.sh."""
