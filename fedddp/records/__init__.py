"""What a run leaves to read: lines of metrics, tables over clients, TensorBoard's files, pictures, the summary."""
