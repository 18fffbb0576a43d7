"""Text to token streams, and token streams to batches. Nothing here imports torch: workers stay small."""
