"""The story that `make demo` tells: everything real, on this machine, and checked as it is told."""
