"""Figures of the papers, drawn anew: one file each, with `draw(out, **options)`."""
