"""The rules that make a daily playlist of scored candidates: pure numpy, no input or output."""
