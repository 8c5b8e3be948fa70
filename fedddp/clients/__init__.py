"""A cohort's work: its batches, its gradients in several forms, noise, and the curvature of its data."""
