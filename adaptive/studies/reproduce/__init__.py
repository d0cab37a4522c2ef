"""Papers' figures and tables as recipes: commands of this program, what they should show, what cannot be had here."""
