"""Papers' figures and tables: scripts of commands of this program, what they should show, what cannot be had here."""
