"""Makes the demo model: pictures, training, export. Needs torch; see README.md."""
