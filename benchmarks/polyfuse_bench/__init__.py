"""Side-by-side measurements of eager, Inductor and Polyfuse, and the sweep over torch's operator database."""
